"""`ropeway bench loader`: what a batch costs that worker processes make."""

from .command import main

__all__ = ["main"]
