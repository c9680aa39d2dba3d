"""R38, seeds, with the loader: facebookresearch/fairseq#1383.

Also pytorch/pytorch#5059, pytorch/pytorch#41329.
"""

PROGRAM = """
import random
import sys

import numpy as np

import ropeway as rw

METHOD = None if sys.argv[1] == "default" else sys.argv[1]


class Data:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return (
            np.random.randint(0, 1 << 31),
            random.randrange(1 << 31),
            np.random.randint(0, 1 << 31),
            random.randrange(1 << 31),
        )


if __name__ == "__main__":
    with rw.Loader(Data(), 4, 4, seed=int(sys.argv[2]), start_method=METHOD) as loader:
        for _ in range(2):
            print([row for batch in loader for row in zip(*(a.tolist() for a in batch))])
"""


def test_draws_differ_by_sample_and_epoch_and_follow_the_seed(room, loader_method):
    one, again, other = (room.run(PROGRAM, loader_method, seed) for seed in (1234, 1234, 1235))
    assert one == again
    epochs = [eval(line) for line in (one + other).splitlines()]
    assert len(epochs) == 4
    assert all(len(epoch) == 64 for epoch in epochs)
    assert len({row for epoch in epochs for row in epoch}) == 4 * 64
