"""Runs of the demo from the command line, in processes of their own."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ropeway import cli
from ropeway.demo import classic, timeline

WATCHDOG = 60.0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--classic", "somewhere"], "ropeway demo --classic takes no FOLDER"),
        (["--classic", "--batch-size", "8"], "ropeway demo --classic takes no --batch-size"),
        (["--rounds", "3"], "ropeway demo without --classic takes no --rounds"),
        (["--classic", "--elements", str(2**31)], "--elements must be below"),
        (["--timeline", "/nowhere/x.png"], "/nowhere is not a folder that can be written to"),
        (["--timeline", "/"], "what is there is not a file that can be written to"),
        (["/nowhere"], "/nowhere is not a folder: give one that holds photos"),
    ],
)
def test_options_that_cannot_be_are_refused_with_one_sentence(arguments, complaint, capsys):
    assert cli.main(["demo", *arguments]) == 1
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_framework_that_is_not_installed_is_asked_for_with_one_sentence(
    framework, folder, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, framework, None)
    assert cli.main(["demo", str(folder), "--framework", framework]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"ropeway: --framework {framework} needs {framework}, which isn't inst")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--slots", "0"], ["--slots", "1e3"], ["--slots", "1,001"], ["--loaders", "-1"]),
        *(["--seconds", "nan"], ["--seconds", "inf"], ["--seconds", "0"], ["--seed", "-1"]),
        *(["--batch-size", "5000"], ["--batches", "9" * 30], ["--framework", "mxnet"]),
        *(["--timeline"], ["--nonsense"], ["--classic", "--elements", "0"]),
    ],
)
def test_numbers_out_of_bounds_are_refused_before_the_run(arguments, capsys):
    with pytest.raises(SystemExit) as refusal:
        cli.main(["demo", *arguments])
    assert refusal.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


def test_a_command_has_to_be_given():
    with pytest.raises(SystemExit) as refusal:
        cli.main([])
    assert refusal.value.code == 2


class Demo:
    """A run of `ropeway demo` in its own process group."""

    def __init__(self, *arguments):
        command = [sys.executable, "-m", "ropeway_command", "demo", *map(str, arguments)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    def finish(self):
        """Waits for the end; gives exit status, output and errors."""
        try:
            out, err = self.process.communicate(timeout=WATCHDOG)
        finally:
            self.process.kill()
        return self.process.returncode, out, err

    def children(self):
        """The spawned processes, in the order of their start."""
        return [pid for pid in children_of(self.process.pid) if b"spawn_main" in command_of(pid)]

    def loaders(self):
        """The loader processes, children of the one that the trainer has for starting them."""
        starters = [pid for trainer in self.children() for pid in children_of(trainer)]
        return [loader for starter in starters for loader in children_of(starter)]

    def at_work(self, processes, number, seconds):
        """Waits until the numbered one of the processes has computed for so long; gives its pid."""
        end = time.monotonic() + WATCHDOG
        while time.monotonic() < end:
            found = processes()
            if len(found) > number and cpu_seconds(found[number]) > seconds:
                return found[number]
            time.sleep(0.02)
        raise AssertionError(f"process {number} did nothing")


def children_of(pid):
    """The children of a process, in the order of their start; none if it has gone."""
    try:
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except (FileNotFoundError, ProcessLookupError):
        return []


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def demo(tmp_path):
    """Starts runs and ends what is left of them."""
    started = []

    def start(*arguments):
        started.append(Demo(*arguments))
        return started[-1]

    yield start
    for run in started:
        run.process.kill()
        run.process.communicate()


def test_a_run_hands_all_batches_over_in_place_and_draws_them(demo, folder):
    picture = folder / "out.png"
    run = demo(folder, "--batches", 12, "--batch-size", 8, "--timeline", picture)
    status, out, err = run.finish()
    assert (status, err) == (0, "")
    assert "hand-offs    12," in out
    assert "0 bytes by ropeway: in all 12 hand-offs" in out
    assert re.search(r"verdict +(loader|consumer)-bound", out)
    with Image.open(picture) as drawn:
        assert drawn.width == timeline.WIDTH


def test_a_run_for_some_seconds_ends_by_itself(demo, folder):
    run = demo(folder, "--seconds", 3, "--batch-size", 8, "--timeline", folder / "out.png")
    status, out, err = run.finish()
    assert (status, err) == (0, "")
    assert "images/s" in out


def test_a_killed_loader_is_replaced_and_training_goes_on_as_if_undisturbed(demo, folder):
    def finished(run):
        status, out, err = run.finish()
        assert (status, err) == (0, "")
        assert "hand-offs    60," in out
        return out

    def loss(out):
        return re.search("^loss .*", out, re.MULTILINE)[0]

    picture = folder / "timeline"  # no name that the next run takes for one of the photos
    arguments = folder, "--batches", 60, "--batch-size", 8, "--timeline", picture
    run = demo(*arguments)
    victim = run.at_work(run.loaders, 0, 0.3)
    os.kill(victim, signal.SIGKILL)
    out = finished(run)
    assert re.search(rf"\(pid {victim}\) was killed by SIGKILL.*; pid \d+ took over", out)
    assert loss(out) == loss(finished(demo(*arguments)))


def test_a_killed_trainer_ends_the_run_with_a_sentence(demo, folder):
    run = demo(folder, "--seconds", 50, "--batch-size", 8, "--timeline", folder / "out.png")
    loaders = [run.at_work(run.loaders, number, 0.1) for number in range(2)]
    os.kill(run.at_work(run.children, 0, 0.5), signal.SIGKILL)
    status, _, err = run.finish()
    assert (status, err) == (1, "ropeway: the trainer was killed by SIGKILL\n")
    assert_gone(loaders)


@pytest.mark.parametrize("seconds", [0.0, 0.1, 1.0])
def test_an_interrupt_ends_everything_with_one_line(demo, folder, seconds):
    run = demo(folder, "--seconds", 50, "--batch-size", 8, "--timeline", folder / "out.png")
    run.at_work(run.children, 0, seconds)
    processes = run.children() + run.loaders()
    os.killpg(run.process.pid, signal.SIGINT)
    status, out, err = run.finish()
    assert (status, err) == (130, "")
    assert re.fullmatch(r"photos: .*\n(.* (free|starting).*\n)*stopped after .*\n", out)
    assert_gone(processes)


def assert_gone(processes):
    """Waits until the processes have ended."""
    end = time.monotonic() + WATCHDOG
    while left := [pid for pid in processes if command_of(pid)]:
        assert time.monotonic() < end, f"{left} are left"
        time.sleep(0.01)


def test_classic_hands_over_what_was_filled_in(demo):
    status, out, err = demo("--classic", "--elements", 1_000_003, "--rounds", 5).finish()
    assert (status, err) == (0, "")
    total = sum(range(1_000_003)) * 5 + 1_000_003 * sum(range(5))
    assert f"checksum {total:,} over 5,000,015 elements, as expected" in out
    assert "the loader ended cleanly, the processor ended cleanly" in out


def test_classic_stops_cleanly(demo):
    run = demo("--classic", "--elements", 2_000_000, "--rounds", 1_000_000)
    run.at_work(run.children, 1, 0.5)
    os.killpg(run.process.pid, signal.SIGINT)
    status, out, err = run.finish()
    assert (status, err) == (130, "")
    assert "as expected" in out
    assert "the loader ended cleanly, the processor ended cleanly" in out


def test_an_array_is_left_within_a_step_of_the_stop():
    class Closing:
        looks = 0

        @property
        def closed(self):
            self.looks += 1
            return self.looks > 3

    array = np.zeros(10 * classic.STEP, np.int32)
    assert classic.fill(array, 0, Closing()).elements == 3 * classic.STEP
    assert not array[3 * classic.STEP :].any()
    assert classic.consume(array, 0, Closing()).elements == 3 * classic.STEP
