"""A warm process that forks workers: with NumPy imported, a single thread, and nothing else.

It imports what the dataset needs once, forks workers when asked, and reports how they ended. It
ends with the process that it works for. Requests and reports are pickled tuples over a socket.
"""

import contextlib
import itertools
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from importlib import import_module
from multiprocessing import util
from typing import Any, BinaryIO

from ropeway import _interrupts
from ropeway._errors import WorkerError
from ropeway.loader import life
from ropeway.loader.surroundings import Surroundings, of_a_zygote

_MESSAGE = 1 << 20
_SHORT = 64 << 10
"""Bytes of a request that go through the socket; longer ones go by a file in memory."""
_TOLD = 20_000
"""Characters of an error that are told, from its end: more than that don't help."""
_PROGRAM = """
import sys
sys.path[:] = sys.argv.pop().split(":")
from ropeway.loader.zygote import main
main({}, {})
"""

preparing = False
"""Whether this process is running the main module of another to get at its classes."""


class Died(Exception):
    """Raised when the zygote has ended."""


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Makes it a `WorkerError` that no descriptor, process or memory is left for a new process."""
    try:
        yield
    except OSError as error:
        raise WorkerError(f"workers can't be started: {error}") from error


class Zygote:
    """The zygote, as seen by the process that it works for."""

    _current: "weakref.ref[Zygote] | None" = None
    _starting = threading.Lock()

    @classmethod
    def get(cls) -> "Zygote":
        """The zygote of this process; it ends when nobody here holds it any more."""
        with cls._starting:
            zygote = cls._current() if cls._current is not None else None
            if zygote is None or zygote.owner != os.getpid() or zygote.ended:
                with starting():
                    zygote = cls()
                cls._current = weakref.ref(zygote)
            return zygote

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.ended = False
        self._lock = threading.RLock()
        self._reports: dict[int, int] = {}
        self._serials = itertools.count()
        self._prepared: Any = None
        with contextlib.ExitStack() as opened:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.callback(self._socket.close)
            with theirs:
                self._life = life.Life()
                opened.callback(self._life.close)
                self._process = _start(theirs.fileno(), self._life.reader)
            opened.pop_all()
        self._life.given()
        resources = self._socket, self._process, self._life
        self._finalizer: Any = util.Finalize(self, _end, resources, exitpriority=10)

    def prepare(self, modules: tuple[str, ...], main: dict[str, Any] | None) -> None:
        """Imports modules, and the main module if workers need it; raises its error as text."""
        with self._lock:
            self._send(("import", modules, sys.path, Surroundings.now()))
            if main is None or main == self._prepared:
                return
            serial = next(self._serials)
            self._send(("prepare", serial, main))
            error = self._answer("prepared", serial)
            if error is not None:
                raise RuntimeError(
                    "workers need the main module to make the dataset, and importing it failed "
                    f'(a script needs `if __name__ == "__main__":`):\n\n{error}'
                )
            self._prepared = main

    def start(self, number: int, reader: int, task: bytes) -> int:
        """Forks a worker; returns its process id. Raises what the system says against it."""
        with self._lock:
            serial = next(self._serials)  # an answer may be left over from an interrupted call
            self._send(("start", serial, number, task, Surroundings.now()), reader)
            pid = self._answer("started", serial)
            if isinstance(pid, OSError):
                raise pid
            self._reports.pop(pid, None)  # of one that had this id before
            return int(pid)

    def status(self, pid: int) -> int | None:
        """How a worker has ended, as `os.waitpid` says it; None if it hasn't. Raises `Died`."""
        with self._lock:
            while self._receive(socket.MSG_DONTWAIT) is not None:
                pass
            if pid not in self._reports and self.ended:
                raise Died
            return self._reports.pop(pid, None)

    def close(self) -> None:
        """Ends the zygote."""
        self.ended = True
        self._finalizer()

    def _send(self, request: Any, reader: int | None = None) -> None:
        data = pickle.dumps(request, protocol=5)
        given = [] if reader is None else [reader]
        with _file(data) if len(data) > _SHORT else contextlib.nullcontext() as file:
            if file is not None:
                data, given = pickle.dumps(("long",)), [*given, file.fileno()]
            try:
                socket.send_fds(self._socket, [data], given)
            except OSError:
                self.ended = True
                raise Died from None

    def _answer(self, kind: str, serial: int) -> Any:
        while True:
            report = self._receive(0)
            if report is None:
                raise Died
            if report[:2] == (kind, serial):
                return report[2]

    def _receive(self, flags: int) -> Any:
        """The next report, None if there is none; ends of workers are noted."""
        try:
            data = self._socket.recv(_MESSAGE, flags)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return None
        report = pickle.loads(data)
        if report[0] == "ended":
            _, pid, status = report
            self._reports[pid] = status
        return report


def _let_go() -> None:
    """Frees the lock in a forked child: who held it, to start a zygote, isn't there."""
    Zygote._starting = threading.Lock()


os.register_at_fork(after_in_child=_let_go)


def _file(data: bytes) -> BinaryIO:
    """A file in memory, at its end."""
    file = os.fdopen(os.memfd_create("ropeway-request"), "w+b")
    file.write(data)
    file.flush()
    return file


def _start(descriptor: int, reader: int) -> "subprocess.Popen[bytes]":
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    program = _PROGRAM.format(descriptor, reader)
    with _interrupts.held():
        return subprocess.Popen(
            [sys.executable, *flags, "-c", program, ":".join(sys.path)],
            pass_fds=[descriptor, reader],
            stdin=subprocess.DEVNULL,
            env=of_a_zygote(),
        )


def _end(ours: socket.socket, process: "subprocess.Popen[bytes]", held: life.Life) -> None:
    with contextlib.suppress(OSError):
        ours.shutdown(socket.SHUT_RDWR)  # a forked child may have the socket too
    ours.close()
    held.close()  # it may be in the middle of an import, so it is killed
    with _interrupts.quiet_at_exit():
        process.wait()


# ---- the zygote itself ---------------------------------------------------------------------------


def main(descriptor: int, reader: int) -> None:
    """Serves until the other end of the socket is closed."""
    life.depend(reader)
    _interrupts.ignore()
    from ropeway.loader import worker  # noqa: F401  (it is what workers need)

    ours = socket.socket(fileno=descriptor)
    ours.set_inheritable(False)
    _Server(ours, reader).serve()
    os._exit(0)


class _Server:
    def __init__(self, ours: socket.socket, reader: int) -> None:
        self._socket, self._reader = ours, reader
        self._bell, bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake = bell
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(bell, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Answers requests and reports ends."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        # Whoever closes the other end with reports unread resets the connection.
        with contextlib.suppress(ConnectionError):
            while True:
                for descriptor, _ in poll.poll():
                    if descriptor == self._bell:
                        os.read(self._bell, 4096)
                        self._reap()
                    elif not self._answer():
                        return

    def _answer(self) -> bool:
        data, given, _, _ = socket.recv_fds(self._socket, _MESSAGE, 2)
        if not data:
            return False
        request = pickle.loads(data)
        if request == ("long",):
            with os.fdopen(given.pop(), "rb") as file:
                file.seek(0)
                request = pickle.load(file)
        match request:
            case ("import", modules, path, surroundings):
                surroundings.take_on()
                sys.path[:] = path
                _import(modules)
            case ("prepare", serial, main):
                self._socket.send(pickle.dumps(("prepared", serial, _prepare(main))))
            case ("start", serial, number, task, surroundings):
                surroundings.take_on()
                pid = _fork()
                if pid == 0:
                    self._become_worker(number, given[0], task)
                os.close(given[0])
                self._socket.send(pickle.dumps(("started", serial, pid)))
        return True

    def _become_worker(self, number: int, reader: int, task: bytes) -> None:
        """What a forked child does, until its end."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._socket.close()
            os.close(self._bell)
            os.close(self._wake)
            os.close(self._reader)
            from ropeway.loader import worker

            life.depend(reader)
            worker.serve(number, reader, life.opened(task, reader))
            worker.leave()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._socket.send(pickle.dumps(("ended", pid, status)))


def _fork() -> int | OSError:
    """As `os.fork`; the error where there may be no more processes."""
    try:
        return os.fork()
    except OSError as error:
        return error


def _import(modules: tuple[str, ...]) -> None:
    for name in modules:
        try:
            import_module(name)
        except Exception:  # the worker that needs it says so
            continue


def _prepare(main: dict[str, Any]) -> str | None:
    global preparing
    import traceback
    from multiprocessing import spawn

    preparing = True
    try:
        spawn.prepare(main)
    except BaseException:
        return traceback.format_exc()[-_TOLD:]
    finally:
        preparing = False
    return None
