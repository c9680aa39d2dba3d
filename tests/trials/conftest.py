"""Trials from public reports: each runs programs in process trees of their own."""

import pytest
from tree import Room


@pytest.fixture
def room(tmp_path):
    """Runs programs, and checks at the end that nothing of them is left."""
    with Room(tmp_path) as room:
        yield room


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def method(request):
    """The name of a start method, each in turn."""
    return request.param


@pytest.fixture(params=["default", "fork", "spawn", "forkserver"])
def loader_method(request):
    """How a loader's workers are started, each way in turn; programs take "default" for None."""
    return request.param
