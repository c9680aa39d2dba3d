"""ropeway's benchmarks: what a hand-off costs, next to other ways of doing it."""

from .command import main

__all__ = ["main"]
