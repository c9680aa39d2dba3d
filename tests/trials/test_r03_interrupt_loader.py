"""R03, one interrupt ends the whole tree, with the loader: mosaicml/streaming#781."""

import signal
import time

PROGRAM = """
import sys
import time

import numpy as np

import ropeway as rw

METHOD = None if sys.argv[1] == "default" else sys.argv[1]


class Data:
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        time.sleep(0.002)
        return np.full(4096, index % 251, "u1")


if __name__ == "__main__":
    loader = rw.Loader(Data(), 8, 4, start_method=METHOD)
    for number, batch in enumerate(loader):
        assert (batch[:, 0] == np.arange(8 * number, 8 * number + 8) % 251).all()
        if number == 0:
            print("first", flush=True)
"""


def test_an_interrupt_ends_the_tree_and_the_next_start_works(room, loader_method):
    """Ten rounds with the workers that a loader starts by itself, four with others."""
    rounds = 5 if loader_method == "default" else 2
    for interrupts in [1] * rounds + [2] * rounds:
        program = room.start(PROGRAM, loader_method)
        assert program.hear() == "first"
        time.sleep(1)
        program.signal_all(signal.SIGINT)
        for _ in range(1, interrupts):
            time.sleep(0.05)
            program.signal_all(signal.SIGINT)
        assert program.wait() == -signal.SIGINT
        room.check_nothing_left()
        assert 1 <= program.errors().count("Traceback") <= interrupts
        assert "KeyboardInterrupt" in program.errors()
        assert "leak" not in program.errors()
