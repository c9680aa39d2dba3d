"""The trainer process: takes ready slots and learns from them in place."""

import importlib
import importlib.util
import time
from multiprocessing.connection import Connection
from typing import Protocol

import numpy as np

import ropeway as rw

from . import DemoError
from .augment import degrees
from .handoff import HandOff, page_faults, unpacked
from .layers import Array
from .place import Places

FRAMEWORKS = {"numpy": ".network", "jax": ".jax_network", "torch": ".torch_network"}


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


def train(reports: Connection, pool: rw.Pool, framework: str, seed: int) -> None:
    """Learns from each slot until the pool is closed and drained, and reports each hand-off."""
    network: Learner = importlib.import_module(FRAMEWORKS[framework], __package__).Network(seed)
    places = Places()
    seen: set[int] = set()
    while True:
        try:
            handoff = train_on_next(pool, network, places, seen)
        except rw.Closed:
            return
        if handoff:
            reports.send(handoff)


def train_on_next(
    pool: rw.Pool, network: Learner, places: Places, seen: set[int]
) -> HandOff | None:
    """Learns from the next ready slot.

    A batch comes twice if its loader was killed between publishing it and saying so; the second
    is passed over.
    """
    asked = time.monotonic_ns()
    with pool.take() as slot:
        taken, faults, fill = time.monotonic_ns(), page_faults(), unpacked(slot.meta)
        if fill.batch in seen:
            return None
        seen.add(fill.batch)
        errors = network.step(slot["image"], slot["label"]) - slot["label"]
        faults = page_faults() - faults
        count, place, index = len(errors), places.of(slot["image"]), slot.index
        nbytes = slot["image"].nbytes + slot["label"].nbytes
    return HandOff(
        fill,
        slot=index,
        images=count,
        nbytes=nbytes,
        asked=asked,
        taken=taken,
        released=time.monotonic_ns(),
        faults=faults,
        place=place,
        loss=float(np.mean(np.square(errors))),
        error=degrees(float(np.mean(np.abs(errors)))),
    )
