"""`ropeway ls`: the pools of this user on this machine, and who holds their slots."""

import argparse
import os
from collections import Counter
from collections.abc import Iterator

from ropeway import _core
from ropeway._errors import RopewayError
from ropeway._status import PoolStatus, read


def pools() -> Iterator[PoolStatus]:
    """Looks at every pool that a process of this user has open, without joining any."""
    seen = set()
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        for descriptor, inode in _control_segments(pid):
            if inode in seen:
                continue
            try:
                status = read(_core.observe(pid, descriptor))
            except RopewayError:
                continue  # an arena, or a process that has just ended
            seen.add(inode)
            yield status


def _control_segments(pid: int) -> Iterator[tuple[int, int]]:
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            if os.readlink(f"{folder}/{name}").startswith("/memfd:ropeway-control"):
                yield int(name), os.stat(f"{folder}/{name}").st_ino
    except OSError:
        return  # of another user, or gone


def line(status: PoolStatus) -> str:
    """Describes one pool in a line."""
    places = Counter(f"{slot.stage}:{slot.state}" for slot in status.slots)
    where = " ".join(f"{place}={n}" for place, n in sorted(places.items()))
    pids = ",".join(str(member.pid) for member in status.members if member.alive)
    return (
        f"{status.label:<24} {status.state:<9} {len(status.slots):>5} slots "
        f"{status.committed / 2**20:>10.1f} MiB {status.published:>12} published  "
        f"members {pids or '-'}  {where}"
    )


def holders(status: PoolStatus) -> list[str]:
    """Describes who holds which slot of a pool since when, the longest first."""
    held = sorted((s for s in status.slots if s.pid is not None), key=lambda s: -(s.held_s or 0))
    return [
        f"    slot {s.index} is held by process {s.pid} at {s.stage!r} ({s.state}) "
        f"for {s.held_s or 0:.1f} s"
        for s in held
    ]


def main(arguments: list[str]) -> int:
    """Prints the pools; with arguments, only those whose name or id contains one of them."""
    text = "Lists your open pools and who holds their slots since when."
    parser = argparse.ArgumentParser("ropeway ls", description=text)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="only pools with PART in their name or id"
    )
    parts, found = parser.parse_args(arguments).parts, False
    for status in pools():
        if parts and not any(part in status.label for part in parts):
            continue
        found = True
        print(line(status))
        print(*holders(status), sep="\n", end="\n" if holders(status) else "")
    if not found:
        print("no pool" + (f" matches {' '.join(parts)}" if parts else " is open"))
    return 0
