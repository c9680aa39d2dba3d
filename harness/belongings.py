"""What a process has of the system, and what it has that it hadn't before."""

import contextlib
import gc
import os
import re
import time
from pathlib import Path


def of_this_process():
    """Children, descriptors, threads, mapped memory files, files and sockets with names."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    sockets = Path("/proc/net/unix").read_text()
    return {
        "children": _children(),
        "descriptors": _descriptors(),
        "threads": set(os.listdir("/proc/self/task")),
        "mapped segments": set(re.findall(r" (\d+) +/memfd:", maps)),
        "files in /dev/shm": {name for name in os.listdir("/dev/shm") if "ropeway" in name},
        "sockets": set(re.findall(rf"@ropeway/\S+/{os.getpid()}/\S+", sockets)),
    }


def left(before, patience=5.0):
    """What this process has that it hadn't before, once that has had time to go."""
    end = time.monotonic() + patience
    while True:
        now = of_this_process()
        more = {what: new for what, here in now.items() if (new := here - before[what])}
        if not more or time.monotonic() > end:
            return more
        time.sleep(0.005)


def _children():
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found |= set((task / "children").read_text().split())
    return found


def _descriptors():
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add((descriptor, os.readlink(f"/proc/self/fd/{descriptor}")))
    return found
