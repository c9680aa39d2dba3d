"""R42, namedtuples, dicts and nested samples, with the loader: pytorch/pytorch#14613.

Also pytorch/pytorch#67831, pytorch/pytorch#32150, Farama-Foundation/Gymnasium#1164.
"""

import pytest

PROGRAM = """
import collections
import dataclasses
import sys

import numpy as np

import ropeway as rw

METHOD = None if sys.argv[1] == "default" else sys.argv[1]
P = collections.namedtuple("P", "x y meta")


class Named(dict):
    def greet(self):
        return "hello"


@dataclasses.dataclass
class Record:
    a: np.ndarray
    b: str


def shared():
    a = np.arange(4.0)
    return [a, a[1:], a]


SAMPLES = {
    "p": lambda: P(np.ones(3, "f4"), 7, {"k": [np.arange(2, dtype="i2"), "txt"], "n": None}),
    "ordered": lambda: collections.OrderedDict(b=1, a=np.zeros(2)),
    "named": lambda: Named(z=np.ones(1)),
    "record": lambda: Record(np.arange(3), "text"),
    "shared": shared,
}


class Data:
    def __init__(self, name):
        self.name = name

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return SAMPLES[self.name]()


def first(name, size):
    with rw.Loader(Data(name), size, int(sys.argv[2]), start_method=METHOD) as loader:
        return next(iter(loader))


if __name__ == "__main__":
    p = first("p", 4)
    assert type(p) is P and p.x.shape == (4, 3) and p.x.dtype == "f4" and p.y.dtype == "i8"
    assert p.meta["k"][0].shape == (4, 2) and p.meta["k"][1] == ["txt"] * 4
    assert p.meta["n"] is None
    assert list(first("ordered", 4)) == ["b", "a"]
    assert type(first("ordered", 4)) is collections.OrderedDict
    assert first("named", 4).greet() == "hello" and type(first("named", 4)) is Named
    record = first("record", 4)
    assert type(record) is Record and record.a.shape == (4, 3) and record.b == ["text"] * 4
    # without batches samples come as they are
    p = first("p", None)
    assert type(p) is P and p.y == 7 and type(p.y) is int and p.meta["k"][1] == "txt"
    assert p.meta["n"] is None and p.x.dtype == "f4"
    one, two, three = first("shared", None)
    assert one is three
    two[0] = 99
    assert one[1] == 99
    assert first("record", None).b == "text" and first("named", None).greet() == "hello"
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_the_structure_that_went_in_comes_out(room, loader_method, workers):
    room.run(PROGRAM, loader_method, workers, seconds=60)
