"""Each framework that is installed is checked in a process of its own, as they start threads."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parent / "frameworks"


@pytest.mark.parametrize("framework", [file.stem[6:] for file in sorted(CHECKS.glob("check_*.py"))])
def test_it_looks_at_our_memory(framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} isn't installed")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(CHECKS / f"check_{framework}.py")],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout
