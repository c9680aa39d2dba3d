"""What a run of the demo can be told to do."""

from pathlib import Path
from typing import NamedTuple


class Options(NamedTuple):
    """What the command line says."""

    folder: Path | None = None
    seconds: float | None = 35.0  # from the first batch on; `None` for no limit
    batches: int | None = None
    batch_size: int = 32
    slots: int = 4  # batches that are being made, lie ready or are in the trainer's hands
    loaders: int = 2
    framework: str = "numpy"
    seed: int = 0
    timeline: Path = Path("timeline.png")
