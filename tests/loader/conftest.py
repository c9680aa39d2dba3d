"""Loaders of every start method, closed at the end of a test."""

import gc

import pytest

import ropeway as rw


@pytest.fixture(params=[None, "fork", "spawn"], ids=["zygote", "fork", "spawn"])
def method(request):
    """A start method, each in turn."""
    return request.param


@pytest.fixture
def loader():
    """Makes loaders that are closed when the test is over."""
    made = []

    def make(dataset, *args, **kwargs):
        made.append(rw.Loader(dataset, *args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()
    made.clear()
    gc.collect()
