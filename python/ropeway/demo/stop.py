"""Ctrl-C as a wish that is looked at, not as an exception that may come anywhere."""

import signal
from typing import Self


class Stop:
    """Remembers a Ctrl-C or SIGTERM that came inside the `with` block, instead of acting on it.

    So one that comes during an import is not lost either: extension modules may swallow the
    exception.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> Self:
        self.before = {
            number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: object) -> None:
        self.signal = number

    @property
    def status(self) -> int:
        """The exit status that a shell expects after that signal; 0 if there was none."""
        return 128 + self.signal if self.signal else 0
