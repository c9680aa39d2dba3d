"""R03, one interrupt ends the whole tree, with the loader: mosaicml/streaming#781."""

from tree import interrupt

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
    interrupt(room, PROGRAM, loader_method, 5 if loader_method == "default" else 2)
