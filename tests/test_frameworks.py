"""Each framework that is installed here is checked in a process of its own, as they start threads.

`make test-frameworks` sets up an environment for each of them, and runs the same checks there.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "frameworks"
SHARED = HERE / "check_shared.py"
ALONE = {file.stem.removeprefix("check_"): file for file in HERE.glob("check_*.py")}
ADAPTED = {file.stem.removeprefix("of_") for file in HERE.glob("adapters/of_*.py")}
FRAMEWORKS = sorted((set(ALONE) | ADAPTED) - {"shared"})


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_looks_at_our_memory(framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} isn't installed")
    files = [ALONE[framework]] if framework in ALONE else []
    files += [SHARED] if framework in ADAPTED else []
    options = ["-q", "-p", "no:cacheprovider", "--framework", framework]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *map(str, files)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout
