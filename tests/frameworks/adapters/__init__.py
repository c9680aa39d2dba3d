"""What the shared checks have to know about each framework: one small module for each."""

import importlib


def load(name):
    """The adapter of a framework, with the framework imported and its threads started."""
    framework = importlib.import_module(f"{__name__}.of_{name}").Framework()
    framework.values(framework.make([1.0, 2.0]))
    return framework
