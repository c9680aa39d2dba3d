"""What processes do to themselves in the middle of a lease."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time

from ledger import ledger

import ropeway as rw

DEEDS = ("exit", "_exit", "exec", "thread", "daemon thread", "subprocess", "fork")

kept = []
"""What is alive when the interpreter is finalised."""


def commit(deed, index, views):
    """Does something in the middle of a lease."""
    kept.append(views)
    match deed:
        case "exit":
            ledger.exits[index] = 1
            sys.exit(0)
        case "_exit":
            ledger.leave(index)
            os._exit(0)
        case "exec":
            ledger.leave(index)
            os.execv("/bin/sleep", ["sleep", "0.02"])
        case "thread":
            # Whatever it holds goes with the exception.
            kept.clear()
            current = ledger.current[index]
            if current and ledger.read[current - 1]:
                ledger.done[current - 1] += 1
            raise Unwound
        case "daemon thread":
            threading.Thread(target=hold, args=(views,), daemon=True).start()
            ledger.exits[index] = 1
            sys.exit(0)
        case "subprocess":
            kept.clear()
            # posix_spawn and vfork, by the arguments
            for closes in (False, True):
                subprocess.run(["/bin/true"], close_fds=closes, check=True)
        case "fork":
            kept.clear()
            misuse(fork(), views)


class Unwound(Exception):
    """Ends a thread."""


def hold(views):
    """Keeps views alive in a thread that never ends."""
    while views is not None:
        time.sleep(1)


def misuse(pid, views):
    """In a child: misuses what it has inherited; collects garbage; leaves nothing."""
    if pid == 0:
        array = views[1] if isinstance(views, tuple) else views
        if array.flags.writeable and not isinstance(array, rw.Array):
            array[...] = 0
        del array, views
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)


def fork():
    """Forks this process; the child is killed if it hangs."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        gc.enable()
    return pid
