"""On what, when and with which versions something was measured."""

import os
import platform
import re
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("ropeway", "numpy", "faster-fifo", "iceoryx2", "torch", "grain", "spdl-core", "pillow")


def describe() -> dict[str, object]:
    """The machine, the date, the versions and the load, as they are now."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "versions": {"python": platform.python_version()} | _versions(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def machine() -> str:
    """One line: processor, cores, memory, kernel."""
    model = re.search(r"^model name\s*: (.*)$", _text("/proc/cpuinfo"), re.MULTILINE)
    hypervisor = re.search(r"^flags\s*:.*\bhypervisor\b", _text("/proc/cpuinfo"), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    return ", ".join(
        (
            (model.group(1).strip() if model else platform.machine())
            + (" (virtual machine)" if hypervisor else ""),
            f"{len(os.sched_getaffinity(0))} cores",
            f"{int(memory.group(1)) / (1 << 20):.0f} GiB" if memory else "memory unknown",
            f"Linux {platform.release()}",
        )
    )


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
