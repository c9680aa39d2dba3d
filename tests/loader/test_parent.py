"""The process that has the loader: interrupted, killed, forked, ended without a word."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ropeway.loader.zygote import Zygote

PROGRAM = """
import os, sys, time
sys.path.insert(0, {folder!r})
import ropeway as rw
from datasets import Slow, Pid
if __name__ == "__main__":
    method = None if sys.argv[1] == "zygote" else sys.argv[1]
    batches = rw.Loader(Slow(100_000, {seconds}), batch_size=4, workers=2, start_method=method)
    iterator = iter(batches)
    next(iterator)
    print("ready", flush=True)
    {then}
"""
WATCHDOG = 30


@pytest.fixture
def program(tmp_path):
    """Starts a program that has a loader, in a session of its own."""
    started = []

    def start(method, then="for batch in iterator: pass", seconds=0.01):
        file = tmp_path / f"program_{len(started)}.py"
        folder = str(Path(__file__).parent)
        file.write_text(PROGRAM.format(folder=folder, then=then, seconds=seconds))
        environment = {k: v for k, v in os.environ.items() if k != "ROPEWAY_SESSION"}
        process = subprocess.Popen(
            [sys.executable, str(file), method or "zygote"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=environment,
        )
        started.append(process)
        assert process.stdout.readline() == b"ready\n", process.stderr.read()
        return process

    yield start
    for process in started:
        for pid in session(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=WATCHDOG)


def session(leader):
    """The living processes of a session."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(") ")[2].split()
                command = Path(f"/proc/{entry}/cmdline").read_text()
            except OSError:
                continue
            if "resource_tracker" in command:  # multiprocessing's own
                continue
            if fields[0] not in "ZX" and int(fields[3]) == leader:
                found.append(int(entry))
    return found


def gone(leader):
    end = time.monotonic() + WATCHDOG / 3
    while session(leader) and time.monotonic() < end:
        time.sleep(0.01)
    return not session(leader)


@pytest.mark.parametrize("seconds", [0.001, 1000])
def test_workers_end_when_the_parent_is_killed(program, method, seconds):
    process = program(method, seconds=0.01, then=KILLED.format(seconds=seconds))
    assert len(session(process.pid)) >= 3
    process.kill()
    assert process.wait(WATCHDOG) == -signal.SIGKILL
    assert gone(process.pid)


KILLED = "stuck = rw.Loader(Slow(100, {seconds}), 4, 2); it = iter(stuck); time.sleep(1000)"


@pytest.mark.parametrize("twice", [False, True])
def test_an_interrupt_ends_all_with_one_traceback(program, method, twice):
    process = program(method)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    if twice:
        time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=WATCHDOG)
    assert process.returncode == -signal.SIGINT
    # Where a second one meets the interpreter's own way out, that is for it to tell.
    ours = [story for story in errors.split(b"Traceback")[1:] if b"/ropeway/" in story]
    assert len(ours) == 1 or (twice and not ours), errors.decode()
    assert errors.count(b"Traceback") <= 1 + twice
    assert b"KeyboardInterrupt" in errors
    assert gone(process.pid)


def test_an_interrupt_reaches_no_worker_that_is_starting(program, method):
    process = program(method, then=STARTING)
    assert process.stdout.readline() == b"armed\n"
    for _ in range(40):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.02)
    out, errors = process.communicate(timeout=WATCHDOG)
    assert (process.returncode, out, errors) == (0, b"[0, 1, 2, 3]\n", b"")


STARTING = """
    import signal
    signal.signal(signal.SIGINT, lambda *_: None)  # goes on
    print("armed", flush=True)
    for _ in range(4):
        batches.close()
        first = next(iter(batches))["number"].tolist()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # those that come while it ends
    print(first)
""".strip()


EARLY = """
import os, signal
if __name__ != "__main__":
    os.kill(os.getpid(), signal.SIGINT)
import ropeway as rw
class Data(list):
    pass
if __name__ == "__main__":
    with rw.Loader(Data(range(8)), 4, 2, start_method={method!r}) as batches:
        assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
"""


@pytest.mark.parametrize("method", [None, "spawn", "forkserver"])
def test_workers_leave_interrupts_to_the_parent_from_their_first_instruction(tmp_path, method):
    """Each imports the main module before it comes to its own code."""
    file = tmp_path / "program.py"
    file.write_text(EARLY.format(method=method))
    done = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, timeout=WATCHDOG, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "then", ["pass", "os._exit(0)", "del iterator", "batches.close()", "sys.kept = iterator"]
)
def test_a_program_ends_quietly_with_a_loader_in_the_middle(program, method, then):
    process = program(method, then=then)
    out, errors = process.communicate(timeout=WATCHDOG)
    assert (process.returncode, out, errors) == (0, b"", b"")
    assert gone(process.pid)


IN_A_THREAD = """
    import threading
    threading.Thread(target=lambda: [None for _ in iterator], daemon=True).start()
    time.sleep(0.2)
""".strip()


def test_a_program_ends_quietly_with_a_loader_in_a_daemon_thread(program, method):
    process = program(method, then=IN_A_THREAD)
    out, errors = process.communicate(timeout=WATCHDOG)
    assert (process.returncode, out, errors) == (0, b"", b"")
    assert gone(process.pid)


BEGINNING = """
    import threading

    def run():
        while True:
            with rw.Loader(Slow(8, 0), 4, 2, start_method=method) as own:
                list(own)

    threading.Thread(target=run, daemon=True).start()
    time.sleep({seconds})
""".strip()


@pytest.mark.parametrize("seconds", [0.01, 0.3, 0.6])
def test_a_program_ends_quietly_while_a_daemon_thread_starts_workers(program, method, seconds):
    process = program(method, then=BEGINNING.format(seconds=seconds))
    out, errors = process.communicate(timeout=WATCHDOG)
    assert (process.returncode, out, errors) == (0, b"", b"")
    assert gone(process.pid)


FORKED = """
    if os.fork() == 0:
        own = [int(n) for b in rw.Loader(Slow(16, 0), 4, 2) for n in b["number"]]
        assert own == list(range(16)), own
        try:
            next(iterator)
        except rw.Closed:
            again = next(iter(batches))["number"].tolist()
        assert again == [0, 1, 2, 3], again
        batches.close()
        os._exit(0)
    status = os.wait()[1]
    assert status == 0, status
    assert next(iterator)["number"].tolist() == [4, 5, 6, 7]
""".strip()


def test_a_forked_child_has_a_loader_of_its_own(program, method):
    process = program(method, then=FORKED)
    out, errors = process.communicate(timeout=WATCHDOG)
    assert (process.returncode, out, errors) == (0, b"", b"")
    assert gone(process.pid)


SURVIVOR = """
    if os.fork() == 0:
        time.sleep(5)  # has what the parent had, and outlives it
        os._exit(0)
    time.sleep(0.3)
    os.kill(os.getpid(), 9)
""".strip()


def test_workers_end_with_the_parent_even_if_a_child_of_it_lives_on(program, method):
    process = program(method, then=SURVIVOR, seconds=0.2)
    process.wait(WATCHDOG)
    end = time.monotonic() + 3
    while len(session(process.pid)) > 1 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(session(process.pid)) == 1


def test_a_child_forked_while_a_thread_starts_workers_can_start_its_own():
    with Zygote._starting:  # as the thread, which the child doesn't have
        child = os.fork()
        if child == 0:
            os._exit(0 if Zygote._starting.acquire(timeout=WATCHDOG) else 1)
    assert os.waitpid(child, 0)[1] == 0
