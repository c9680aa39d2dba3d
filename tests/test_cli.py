"""The command `ropeway`: ls, top, and what anybody may type."""

import os
import signal
import subprocess
import sys

import pytest

import ropeway as rw

WATCHDOG = 60


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "ropeway_command", *arguments],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
        env={**os.environ, "COLUMNS": "200", "LINES": "200"},
    )
    return done.returncode, done.stdout, done.stderr


def opened():
    return rw.Pool(slots=2, shape=(8,), dtype="f8", name="test-of-the-command")


@pytest.mark.parametrize("name", ["demo", "ls", "top", "bench"])
def test_every_command_explains_itself(name):
    status, out, errors = command(name, "--help")
    assert (status, errors) == (0, "")
    assert out.startswith(f"usage: ropeway {name} ")
    assert f" {name} " in command("--help")[1]


def test_it_has_a_version():
    assert command("--version") == (0, f"ropeway {rw.__version__}\n", "")


@pytest.mark.parametrize("name", ["demo", "top"])
def test_an_interrupt_of_the_first_imports_is_one_line(tmp_path, name):
    imports = "import time; print('importing', flush=True); time.sleep(60)"
    (tmp_path / "numpy.py").write_text(imports)
    starting = subprocess.Popen(
        [sys.executable, "-m", "ropeway_command", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    )
    assert starting.stdout.readline() == "importing\n"
    starting.send_signal(signal.SIGINT)
    assert starting.communicate(timeout=WATCHDOG) == ("", "ropeway: stopped\n")
    assert starting.returncode == 130


@pytest.mark.parametrize("arguments", [["ls", "--nonsense"], ["top", "nonsense"], ["nonsense"], []])
def test_what_no_command_knows_is_refused(arguments):
    status, out, errors = command(*arguments)
    assert (status, out) == (2, "")
    assert errors.startswith("usage: ropeway")


@pytest.mark.parametrize("arguments", [["ls"], ["ls", "of-the-command"], ["top", "--once"]])
def test_a_pool_is_listed_with_who_holds_its_slots(arguments):
    pool = opened()
    lease = pool.acquire()
    status, out, errors = command(*arguments)
    assert (status, errors) == (0, "")
    assert "test-of-the-command" in out
    assert "fill:held-write=1" in out
    assert "slot 0 is held by process" in out
    lease.release()


def test_a_pool_that_nobody_has_is_not_there():
    assert command("ls", "no such pool") == (0, "no pool matches no such pool\n", "")


def test_a_reader_of_the_output_may_leave():
    """As `ropeway top | head -1` does."""
    watching = subprocess.Popen(
        [sys.executable, "-m", "ropeway_command", "top"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert b"ropeway top" in watching.stdout.readline()
    watching.stdout.close()
    assert watching.wait(WATCHDOG) == 1
    assert watching.stderr.read() == b""
    watching.stderr.close()
