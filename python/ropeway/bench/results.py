"""What a run found: records as they were told, and figures over its rounds."""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .contest import Record

Where = Mapping[str, object]
"""Fields that a record must have."""


@dataclass(frozen=True)
class Figure:
    """A value over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Figure | None":
        """None where there is no value."""
        values = list(values)
        if not values:
            return None
        return cls(statistics.median(values), min(values), max(values))

    def scaled(self, factor: float) -> "Figure":
        """The same in another unit."""
        return Figure(self.median * factor, self.low * factor, self.high * factor)

    def __str__(self) -> str:
        if self.low == self.high:
            return short(self.median)
        return f"{short(self.median)} ({short(self.low)}..{short(self.high)})"


@dataclass
class Results:
    """`about` tells machine, date, versions and command; `records` has one entry per trial."""

    about: dict[str, Any]
    records: list[Record]

    def rounds(self, what: str, **where: object) -> dict[int, float]:
        """The value called `what` in each round, from records whose fields are as in `where`."""
        return {r["round"]: r[what] for r in self._matching(where) if what in r}

    def figure(self, what: str, **where: object) -> Figure | None:
        """The value called `what` over the rounds."""
        return Figure.of(self.rounds(what, **where).values())

    def ratio(self, what: str, where: Where, over: Where) -> Figure | None:
        """The ratio of two values, each taken within one round."""
        top, bottom = self.rounds(what, **where), self.rounds(what, **over)
        return Figure.of(top[number] / bottom[number] for number in top if number in bottom)

    def contestants(self, **where: object) -> list[str]:
        """Who has a record, in the order of their first one."""
        return list(dict.fromkeys(r["contestant"] for r in self._matching(where)))

    def error(self, **where: object) -> str | None:
        """The last thing that went wrong."""
        return next((r["error"] for r in reversed(self._matching(where)) if "error" in r), None)

    def save(self, path: Path) -> None:
        """Writes everything as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"about": self.about, "records": self.records}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Results":
        """Reads what `save` wrote."""
        return cls(**json.loads(path.read_text()))

    def _matching(self, where: Where) -> list[Record]:
        return [
            r for r in self.records if all(r.get(name) == value for name, value in where.items())
        ]


def short(value: float) -> str:
    """Three digits are all that such a measurement is worth."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.{1 if abs(value) >= 10 else 2}f}"
