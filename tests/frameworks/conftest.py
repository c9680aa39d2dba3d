"""Which framework the shared checks are run against."""

import gc

import adapters
import pytest


def pytest_addoption(parser):
    parser.addoption("--framework", help="the module of the framework to check")


@pytest.fixture(scope="session")
def framework(request):
    """What the checks have to know about the framework."""
    loaded = adapters.load(request.config.getoption("--framework"))
    gc.collect()
    gc.freeze()  # it need not be looked at after each test
    return loaded
