"""R33, a worker killed inside a critical section, with the loader: birdnet-team/birdnet#73."""

import pytest

PROGRAM = """
import contextlib
import os
import random
import signal
import sys
import time

import numpy as np

import ropeway as rw

METHOD = None if sys.argv[1] == "default" else sys.argv[1]
ROUNDS = int(sys.argv[2])


class Data:
    def __len__(self):
        return 10**9  # more than any machine gets through

    def __getitem__(self, index):
        return index, np.full((8, 1024), index, "f8")


def check(batch, number):
    indices, arrays = batch
    assert indices.tolist() == list(range(8 * number, 8 * number + 8)), (number, indices)
    assert (arrays == indices[:, None, None]).all()


if __name__ == "__main__":
    chance = random.Random(1)
    loader = rw.Loader(Data(), 8, 4, start_method=METHOD, retries=6)
    batches, number = enumerate(loader), 0
    for _ in range(ROUNDS):
        end = time.monotonic() + 0.05 + 0.05 * chance.random()
        while time.monotonic() < end:
            number, batch = next(batches)
            check(batch, number)
        pid = chance.choice(list(loader._engine.crew.pids().values()))
        with contextlib.suppress(ProcessLookupError):  # the last one, not missed yet
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.005)
            os.kill(pid, signal.SIGKILL)
        begin = time.monotonic()
        for _ in range(10):
            number, batch = next(batches)
            check(batch, number)
        assert time.monotonic() - begin < 5
    pool = loader._engine.pool
    del batch, batches  # an enumerate keeps its last item
    loader.close()
    end = time.monotonic() + 5
    while [s for s in pool.status().slots if s.state != "idle"] and time.monotonic() < end:
        time.sleep(0.01)
    assert not [s for s in pool.status().slots if s.state != "idle"]
    again = iter(loader)
    for number in range(10):
        check(next(again), number)
    loader.close()
"""


@pytest.mark.parametrize(("method", "rounds"), [("default", 200), ("fork", 50), ("spawn", 10)])
def test_the_stream_goes_on_whoever_is_killed(room, method, rounds):
    room.run(PROGRAM, method, rounds, seconds=100)


NAMED = (
    PROGRAM.split("if __name__")[0].replace(
        "        return index, np",
        "        if index == 20:\n            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return index, np",
    )
    + """
if __name__ == "__main__":
    loader = rw.Loader(Data(), 8, 2, start_method=METHOD)
    batches = iter(loader)
    check(next(batches), 0)
    check(next(batches), 1)
    try:
        next(batches)
    except rw.WorkerError as error:
        assert "sample 20" in str(error) and "SIGKILL" in str(error) and "worker" in str(error)
    else:
        raise AssertionError("no error")
    check(next(batches), 3)
    loader.close()
"""
)


def test_a_sample_that_kills_is_named_with_the_signal(room, loader_method):
    room.run(NAMED, loader_method, 0)
