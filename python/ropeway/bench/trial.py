"""One trial: a process that measures one contestant once, told and answering in JSON."""

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

from . import descriptors, export, fill, oneway, roundtrip
from .placement import placements


@dataclass(frozen=True)
class Trial:
    """What is measured, of whom, where and how long."""

    question: str
    contestant: str
    placement: str
    nbytes: int
    slots: int = 1
    seconds: float = 0.3
    turns: int = 0
    """Hand-offs, where they are counted and not timed; blocks of fills."""
    ways: tuple[str, ...] = ()
    """The ways of filling that are compared in one process."""

    def to_json(self) -> str:
        """The argument of the process that measures this trial."""
        return json.dumps(asdict(self))

    def measure(self) -> dict[str, dict[str, Any]]:
        """Measures in this process; there is a result by contestant, or by way of filling."""
        cores = placements()[self.placement]
        match self.question:
            case "roundtrip":
                result: dict[str, Any] = roundtrip.measure(
                    self.contestant, cores, self.nbytes, self.seconds
                )
            case "oneway":
                result = oneway.measure(
                    self.contestant, cores, self.nbytes, self.slots, self.seconds
                )
            case "descriptors":
                result = descriptors.measure(
                    self.contestant, cores, self.nbytes, self.slots, self.turns
                )
            case "fill":
                return fill.measure(cores[0], list(self.ways), self.turns)
            case "export":
                return export.measure(cores[0], self.turns)
            case _:
                raise ValueError(
                    "a trial asks roundtrip, oneway, fill, descriptors or export, "
                    f"found {self.question}"
                )
        return {self.contestant: result}


if __name__ == "__main__":
    print(json.dumps(Trial(**json.loads(sys.argv[1])).measure()))
