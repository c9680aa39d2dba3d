"""The trainer process: has its batches made by a loader, and learns from them in place."""

import importlib
import importlib.util
import math
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import numpy as np

import ropeway as rw

from . import DemoError
from .augment import degrees
from .dataset import Sample, TurnedPhotos
from .handoff import HandOff, count_in_place, fills_of, page_faults, unreadable_in
from .layers import Array
from .options import Options
from .place import Place, Places

FRAMEWORKS = {"numpy": ".network", "jax": ".jax_network", "torch": ".torch_network"}
ENDLESS = 1 << 40  # images


class Learner(Protocol):
    """What each framework's `Network` can do."""

    def step(self, images: Array, labels: Array) -> Array:
        """Learns from one batch, gives the predictions made before, and keeps no view of it."""


def check_installed(framework: str) -> None:
    """Raises `DemoError` if the framework can't be imported."""
    if importlib.util.find_spec(framework) is None:
        raise DemoError(
            f"--framework {framework} needs {framework}, which isn't installed: "
            f"pip install {framework}"
        )


def train(reports: Connection, photos: list[Path], options: Options) -> None:
    """Learns from batch after batch; reports each hand-off, and how the loader is doing."""
    length = ENDLESS if options.batches is None else options.batches * options.batch_size
    with rw.Loader(
        TurnedPhotos(photos, length),
        options.batch_size,
        options.loaders,
        seed=options.seed,
        prefetch=options.slots,
    ) as loader:
        module = importlib.import_module(FRAMEWORKS[options.framework], __package__)
        network = module.Network(options.seed)
        trainer = Trainer(iter(loader), network)
        end = math.inf
        while time.monotonic() < end and (handoff := trainer.train_on_next()):
            reports.send((handoff, loader.stats()))
            end = min(end, time.monotonic() + (options.seconds or math.inf))


class Trainer:
    """Takes batches, learns from each, and notes what happened."""

    def __init__(self, batches: Iterator[Sample], network: Learner):
        self.batches, self.network = batches, network
        self.count = 0
        self.places = Places()
        self.slots: dict[Place | None, int] = {}

    def train_on_next(self) -> HandOff | None:
        """Learns from the next batch, and lets go of it; `None` if there is none."""
        asked = time.monotonic_ns()
        batch = next(self.batches, None)
        if batch is None:
            return None
        taken, faults = time.monotonic_ns(), page_faults()
        errors = self.network.step(batch.image, batch.label) - batch.label
        released, faults = time.monotonic_ns(), page_faults() - faults
        place = self.places.of(batch.image)
        self.count += 1
        return HandOff(
            self.count - 1,
            fills_of(batch.note),
            slot=self.slots.setdefault(place, len(self.slots)),
            images=len(batch.image),
            nbytes=batch.image.nbytes + batch.label.nbytes,
            asked=asked,
            taken=taken,
            released=released,
            faults=faults,
            place=place,
            in_place=count_in_place(batch.note, batch.image, place),
            unreadable=unreadable_in(batch.note),
            loss=float(np.mean(np.square(errors))),
            error=degrees(float(np.mean(np.abs(errors)))),
        )
