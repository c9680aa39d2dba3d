"""The two processes of a trial: the near one keeps the time, the far one does what it is told."""

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .peers import PEERS, Peer
from .placement import Cores, pin

Census = dict[str, int]


class Pair:
    """The near process's hold on the far one."""

    def __init__(self, peer: Peer, line: Connection) -> None:
        self.peer, self.line = peer, line

    @contextmanager
    def far(self, loop: str, numbers: list[int] | int) -> Iterator[None]:
        """Lets the far process run one loop beside the block, over `numbers` or that many None."""
        self.line.send((loop, numbers))
        yield
        self.line.recv()

    def census(self) -> tuple[Census, Census]:
        """The census of this process and of the far one."""
        self.line.send(("census", 0))
        return census(), self.line.recv()


@contextmanager
def paired(
    contestant: str, cores: Cores, nbytes: int, slots: int, round_trip: bool
) -> Iterator[Pair]:
    """Starts a contestant's far process, pins and attaches both; ends it with the block."""
    context = get_context("spawn")
    peer = PEERS[contestant](context, nbytes, slots, round_trip)
    line, far_line = context.Pipe()
    process = context.Process(target=_serve, args=(peer, far_line, cores[1]), daemon=True)
    process.start()
    pin(cores[0])
    peer.attach("near")
    line.recv()
    yield Pair(peer, line)
    peer.detach()
    line.send(None)
    process.join()
    peer.close()


def census() -> Census:
    """Counts this process's open descriptors and mappings."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": len(maps),
        "shared mappings": sum(line.split()[1].endswith("s") for line in maps),
    }


def _serve(peer: Peer, line: Connection, core: int) -> None:
    """Runs the far process until it is told to end.

    An error ends the near process too, which would wait for ever.
    """
    try:
        pin(core)
        peer.attach("far")
        line.send("ready")
        for loop, numbers in iter(line.recv, None):
            line.send(census() if loop == "census" else _run(peer, loop, numbers))
        peer.detach()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        near = parent_process()
        if near is not None and near.pid == os.getppid():  # else it has ended already
            os.kill(near.pid, signal.SIGTERM)
        raise


def _run(peer: Peer, loop: str, numbers: list[int] | int) -> Any:
    getattr(peer, loop)(repeat(None, numbers) if isinstance(numbers, int) else numbers)
