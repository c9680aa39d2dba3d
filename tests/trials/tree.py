"""Programs in process trees of their own: an empty /dev/shm, a watchdog, and nothing left behind.

A program is a text. It is written to a file, so that its workers can import it under every start
method, and runs in a fresh interpreter that leads a session of its own. What it prints goes to
files, so that it needs no reader, and a process that outlives it can't hold the trial up.
"""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

WATCHDOG = 30.0
"""Seconds after which a wait counts as a hang."""


def times(as_reported, fewer, method):
    """As many as reported for `fork`; fewer for the rest, unless ROPEWAY_FULL_TRIALS is set."""
    return as_reported if method == "fork" or "ROPEWAY_FULL_TRIALS" in os.environ else fewer


_ROOM = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
_ROOM_KEEPER = "mount -t tmpfs tmpfs /dev/shm && echo ready && exec cat"


def interrupt(room, program, method, rounds):
    """Interrupts a program that says "first", in as many rounds once, and in as many twice.

    Each must end the whole tree by the interrupt, with a traceback for each and no word of leaks.
    """
    for interrupts in [1] * rounds + [2] * rounds:
        running = room.start(program, method)
        assert running.hear() == "first"
        time.sleep(1)
        running.signal_all(signal.SIGINT)
        for _ in range(1, interrupts):
            time.sleep(0.05)
            running.signal_all(signal.SIGINT)
        assert running.wait() == -signal.SIGINT
        room.check_nothing_left()
        assert 1 <= running.errors().count("Traceback") <= interrupts
        assert "KeyboardInterrupt" in running.errors()
        assert "leak" not in running.errors()


class Room:
    """Where programs of one trial run; leaving it checks that they are gone, with all they had.

    Where the system allows that, they have an empty /dev/shm which nobody else sees; elsewhere
    only what this user has put into the common one counts.
    """

    def __init__(self, folder):
        self._folder = folder
        self._programs = []
        self._keeper = None

    def __enter__(self):
        with contextlib.suppress(FileNotFoundError):
            self._keeper = subprocess.Popen(
                [*_ROOM, _ROOM_KEEPER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            if self._keeper.stdout.readline() != b"ready\n":
                self._close()
        self._before = self.files()
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.check_nothing_left()
        finally:
            for program in self._programs:
                program.end()
            self._close()

    def start(self, text, *arguments, python=sys.executable):
        """Starts a program; what it is to read goes to its `tell`."""
        number = len(self._programs)
        file = self._folder / f"program_{number}.py"
        file.write_text(textwrap.dedent(text))
        enter = ["nsenter", f"--mount=/proc/{self._keeper.pid}/ns/mnt"] if self._keeper else []
        command = [*enter, python, str(file), *map(str, arguments)]
        program = Program(command, self._folder / f"program_{number}")
        self._programs.append(program)
        return program

    def run(self, text, *arguments, returncode=0, seconds=WATCHDOG):
        """Runs a program, which must end as expected and quietly; returns its output."""
        program = self.start(text, *arguments)
        program.check_end(returncode, seconds)
        return program.output()

    def files(self):
        """The files in /dev/shm that these programs may have put there."""
        shared = Path(f"/proc/{self._keeper.pid}/root/dev/shm" if self._keeper else "/dev/shm")
        return {file.name for file in shared.iterdir() if file.lstat().st_uid == os.getuid()}

    def check_nothing_left(self):
        """Checks that no process of any program's tree lives, and that /dev/shm is as it was."""
        for program in self._programs:
            assert eventually(lambda p=program: not p.tree()), f"left: {program.tree()}"
        assert eventually(lambda: self.files() == self._before), f"left: {self.files()}"

    def _close(self):
        if self._keeper is not None:
            self._keeper.stdin.close()
            self._keeper.stdout.close()
            self._keeper.wait(WATCHDOG)
            self._keeper = None


class Program:
    """A running program, the leader of its session."""

    def __init__(self, command, path):
        self._out, self._err = path.with_suffix(".out"), path.with_suffix(".err")
        environment = {k: v for k, v in os.environ.items() if k != "ROPEWAY_SESSION"}
        paths = [str(Path(__file__).parent), environment.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environment["PYTHONFAULTHANDLER"] = "1"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._heard = 0

    def tell(self, line):
        """Writes a line to the program's standard input."""
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def hear(self):
        """Waits for the next line of the program's output."""
        spoken = eventually(lambda: self._lines() > self._heard or self.ended())
        assert spoken, self._hung("said nothing more")
        assert self._lines() > self._heard, self._story("ended without a further line")
        self._heard += 1
        return self.output().splitlines()[self._heard - 1]

    def signal_all(self, number):
        """Sends a signal to the whole process group, as a terminal does."""
        os.killpg(self.pid, number)

    def ended(self):
        """Whether the program itself has ended."""
        return self._process.poll() is not None

    def check_end(self, returncode=0, seconds=WATCHDOG):
        """Waits for the end, which must be as expected and quiet."""
        ended = self.wait(seconds)
        assert ended == returncode, self._story(f"ended with {ended}")
        assert self.errors() == "", self._story("wrote to standard error")

    def wait(self, seconds=WATCHDOG):
        """Waits for the end of the program; returns how it ended, as `subprocess` says it."""
        self._process.stdin.close()
        assert eventually(self.ended, seconds), self._hung("didn't end")
        return self._process.returncode

    def output(self):
        """All that the program and its children have written to standard output so far."""
        return self._out.read_text()

    def errors(self):
        """All that they have written to standard error."""
        return self._err.read_text()

    def tree(self):
        """The living processes of the program's session: pid and command line."""
        return {
            pid: " ".join(command) for pid, session, command in _living() if session == self.pid
        }

    def end(self):
        """Kills what is still there."""
        for pid in self.tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.stdin.close()
        self._process.wait(WATCHDOG)

    def _lines(self):
        return self.output().count("\n")

    def _hung(self, what):
        """Makes every process of the tree say where it is."""
        story = self._story(what)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGABRT)
        time.sleep(0.5)
        return f"{story}\n--- where they were\n{self.errors()}"

    def _story(self, what):
        return (
            f"the program {what}\n--- output\n{self.output()}\n--- errors\n{self.errors()}\n"
            f"--- processes\n{self.tree()}"
        )


def segments(pids):
    """The memory files that processes have open or mapped: bytes by inode."""
    found = {}
    for pid in pids:
        for folder in ("fd", "map_files"):
            with contextlib.suppress(OSError):
                for entry in Path(f"/proc/{pid}/{folder}").iterdir():
                    with contextlib.suppress(OSError):
                        if os.readlink(entry).startswith("/memfd:"):
                            status = entry.stat()
                            found[status.st_ino] = status.st_blocks * 512
    return found


def everybody():
    """The pids of all processes of the machine."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def eventually(condition, seconds=WATCHDOG):
    """Waits until a condition holds; False if the watchdog comes first."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _living():
    for pid in everybody():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
            state, _, _, session = status.split()[:4]
            command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if state not in "ZX":
                yield pid, int(session), command
