"""`ropeway top`: the pools of this user, refreshed until Ctrl-C."""

import argparse
import shutil
import sys
import time

from ropeway._ls import holders, line, pools
from ropeway._status import PoolStatus

PERIOD = 0.5


def frame(before: dict[str, int], seconds: float) -> tuple[str, dict[str, int]]:
    """Draws all pools with their rates since `before`; returns the text and the new counts."""
    lines, counts = [time.strftime("ropeway top  %H:%M:%S"), ""], {}
    for status in pools():
        counts[status.label] = status.published
        lines += [f"{line(status)}  {_rate(status, before, seconds)}", *holders(status)[:8]]
    if not counts:
        lines.append("no pool is open")
    size = shutil.get_terminal_size()
    return "\n".join(text[: size.columns] for text in lines[: size.lines - 1]), counts


def _rate(status: PoolStatus, before: dict[str, int], seconds: float) -> str:
    if status.label not in before:
        return ""
    return f"{(status.published - before[status.label]) / seconds:.1f}/s"


def main(arguments: list[str]) -> int:
    """Redraws twice a second; `--once` draws one frame."""
    text = "Watches your open pools, until Ctrl-C."
    parser = argparse.ArgumentParser("ropeway top", description=text)
    parser.add_argument("--once", action="store_true", help="draw one frame and end")
    once = parser.parse_args(arguments).once
    counts: dict[str, int] = {}
    last = time.monotonic() - PERIOD
    try:
        while True:
            now = time.monotonic()
            text, counts = frame(counts, now - last)
            last = now
            if once:
                print(text)
                return 0
            sys.stdout.write(f"\x1b[H\x1b[J{text}\n")
            sys.stdout.flush()
            time.sleep(PERIOD)
    except KeyboardInterrupt:
        return 0
