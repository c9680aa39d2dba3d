"""torch's loader and ours, side by side; without torch these tests are skipped, by `sets`."""

import importlib.util
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WATCHDOG = 100
INSTALLED = importlib.util.find_spec("torch") is not None

if INSTALLED:
    import torch

    torch.set_num_threads(1)
    with warnings.catch_warnings(action="ignore"):
        torch.accelerator.is_available()  # it warns once if it was made for CUDA and finds none

    from torch.utils.data import DataLoader as Theirs

    from ropeway.torch import DataLoader as Ours

    @pytest.fixture(params=[Theirs, Ours], ids=["torch", "ropeway"])
    def kind(request):
        """torch's loader and ours, each in turn: what is asserted holds for both."""
        return request.param

    @pytest.fixture(params=["fork", "spawn"])
    def method(request):
        """A start method, each in turn."""
        return request.param


def pytest_collection_modifyitems(items):
    """Gives each test a watchdog, so that a wait for a batch that never comes fails that test.

    Keeps quiet what forks warn of, from 3.12 on, of threads that torch has started.
    """
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(WATCHDOG, method="signal"))
            item.add_marker(pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"))
