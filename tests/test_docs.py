"""What the pages say of tests: each test that they name exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ["SECURITY.md", "docs/reliability.md"]
NAMED = re.compile(r"`([\w/.]+\.(?:py|rs))::(\w+)`")


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_is_there(page):
    named = NAMED.findall((ROOT / page).read_text())
    assert len(named) > 10
    for file, name in named:
        source = (ROOT / file).read_text()
        assert re.search(rf"\b(def|fn) {name}\b", source), f"{file} has no {name}"


@pytest.mark.parametrize("page", PAGES)
def test_every_page_that_a_page_links_is_there(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), target
