"""Rounds with a loader, whose workers are killed."""

import contextlib
import os
import random
import signal
import time

import numpy as np

import ropeway as rw


class Numbers:
    """Samples that say which they are and who has made them."""

    def __init__(self, length, size):
        """Makes samples of `size` numbers."""
        self.length, self.size = length, size

    def __len__(self):
        """The number of samples."""
        return self.length

    def __getitem__(self, index):
        """The sample, the same whoever makes it."""
        return {"numbers": np.full(self.size, index, "i8"), "pid": os.getpid()}


def play_loader(seed, ledger, kills_zygote=False):
    """Reads two epochs while workers, or whoever forks them, are killed; returns how many."""
    chance = random.Random(seed)
    data = Numbers(chance.randrange(20, 200), chance.randrange(1, 2000))
    # Whoever is killed again and again at one sample would make it an error.
    loader = rw.Loader(data, batch_size=chance.randrange(1, 9), workers=2, retries=6)
    killed = 0
    for _ in range(2):
        seen = []
        for batch in loader:
            seen += batch["numbers"][:, 0].tolist()
            if not (batch["numbers"] == batch["numbers"][:, :1]).all():
                ledger.complain(f"a batch is torn: {batch['numbers']}")
            if chance.random() < 0.1:
                time.sleep(chance.random() * 0.003)
                victim = zygote(loader) if kills_zygote else int(chance.choice(batch["pid"]))
                with contextlib.suppress(ProcessLookupError, TypeError):
                    os.kill(victim, signal.SIGKILL)
                    killed += 1
            del batch
        if seen != list(range(len(data))):
            ledger.complain(f"the stream is not the dataset: {seen}")
    loader.close()
    return killed


def zygote(loader):
    """The process that forks the loader's workers, None while there is none."""
    hands = loader._engine.crew._hands.values()
    return next((hand._zygote._process.pid for hand in hands), None)
