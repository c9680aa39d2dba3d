"""The README tells the truth: its example runs, and its links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_example_runs(tmp_path: Path) -> None:
    """The first Python block, with three batches instead of a hundred."""
    text = (ROOT / "README.md").read_text()
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert example is not None
    program = tmp_path / "example.py"
    program.write_text(example[1].replace("range(100)", "range(3)"))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    batches = [line.split() for line in done.stdout.splitlines()]
    assert [int(number) for number, _ in batches] == [0, 1, 2]
    assert all(0.49 < float(mean) < 0.51 for _, mean in batches)


def test_the_code_begins_by_line_16() -> None:
    """A reader sees code on the first screen."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert lines.index("```python") < 16


def test_the_links_lead_somewhere() -> None:
    """Every relative link names a file of the repository."""
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
