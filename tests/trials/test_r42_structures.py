"""R42, namedtuples, dicts, nested samples: pytorch/pytorch#14613.

Also pytorch/pytorch#67831, pytorch/pytorch#32150, Farama-Foundation/Gymnasium#1164. The structure
that went in comes out, and what was one object stays one.
"""

STRUCTURES = """
import collections
import dataclasses
import multiprocessing as mp
import sys
from collections import OrderedDict, namedtuple

import numpy as np

import ropeway as rw

CONTEXT = mp.get_context(*sys.argv[1:2])
P = namedtuple("P", "x y meta")


class Named(dict):
    def first(self):
        return next(iter(self))


@dataclasses.dataclass
class Sample:
    image: np.ndarray
    label: int


def point():
    meta = {"k": [np.array([1, -2], "i2"), "txt"], "n": None}
    return P(np.array([0.5, 1.5, 2.5], "f4"), 7, meta)


def ordered():
    return OrderedDict(b=np.arange(3), a=np.arange(4.0))


def named():
    return Named(z=np.arange(5), y=np.ones((2, 2), bool))


def sample():
    return Sample(np.arange(12, dtype="u1").reshape(3, 4), 3)


def aliases():
    array = np.arange(100)
    return [array, array[1:], array]


def same(got, made):
    if isinstance(made, np.ndarray):
        assert isinstance(got, np.ndarray), got
        assert got.dtype == made.dtype and got.shape == made.shape and (got == made).all()
        assert shared(got)
        return
    assert type(got) is type(made), (got, made)
    if isinstance(made, dict):
        assert list(got) == list(made)
        for key in made:
            same(got[key], made[key])
    elif isinstance(made, (list, tuple)):
        assert len(got) == len(made)
        for one, other in zip(got, made):
            same(one, other)
    elif dataclasses.is_dataclass(made):
        same(vars(got), vars(made))
    else:
        assert got == made


def shared(array):
    # whether its first element lies in a segment
    place = array.ctypes.data
    for line in open("/proc/self/maps"):
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= place < end:
            return "memfd:" in line
"""

SENT = (
    STRUCTURES
    + """
def receive(queue):
    for make in (point, ordered, named, sample, aliases):
        got = queue.get(timeout=20)
        same(got, make())
        if make is named:
            assert got.first() == "z"
        if make is aliases:
            first, second, third = got
            assert first is third and first is not second
            second[0] = -1
            assert first[1] == third[1] == -1
            first[50] = -2
            assert second[49] == -2


if __name__ == "__main__":
    queue = rw.Queue()
    for make in (point, ordered, named, sample, aliases):
        queue.put(make())
    receiver = CONTEXT.Process(target=receive, args=(queue,))
    receiver.start()
    receiver.join(25)
    assert receiver.exitcode == 0
"""
)


def test_structures_come_out_as_they_went_in(room, method):
    room.run(SENT, method)


HANDLES = (
    STRUCTURES
    + """
queue = rw.Queue()
array = rw.share(np.arange(100))
queue.put([array, array[1:], array])
first, second, third = queue.get(timeout=20)
assert first is third and second.ctypes.data == first.ctypes.data + 8
second[0] = -1
assert first[1] == array[1] == -1
"""
)


def test_shared_arrays_keep_being_one_object(room):
    """A sibling: the list's array is a shared one, and travels as a handle."""
    room.run(HANDLES)


CROSSED = (
    STRUCTURES
    + """
table = np.arange(60, dtype="i4").reshape(6, 10)
message = {
    "row": table[2],
    "column": table[:, 3],
    "back": table[::-1, ::2],
    "turned": table.T,
    "bytes": table.view("u1")[:, :4],
    "apart": table.copy(),
}
queue = rw.Queue()
queue.put(message)
got = queue.get(timeout=20)
same(got, message)
assert {name: array.strides for name, array in got.items()} == {
    name: array.strides for name, array in message.items()
}
got["row"][3] = -7
assert got["column"][2] == got["turned"][3, 2] == -7
assert got["back"][3, 0] == table[2, 0] and got["apart"][2, 3] == table[2, 3] == 23
"""
)


def test_views_that_cross_stay_views_of_one_memory(room):
    """A sibling: rows, columns, reversed and turned views of one table."""
    room.run(CROSSED)


LOOPS = (
    STRUCTURES
    + """
loop = [np.arange(3)]
loop.append(loop)
deep = None
for _ in range(50):
    deep = {"a": np.arange(2), "deep": deep}
mixed = (memoryview(b"abc").tobytes(), bytearray(b"def"), {1, 2}, frozenset("x"), 1j, ...)
queue = rw.Queue()
for message in (loop, deep, mixed, None, (), [], {}, "", collections.deque([np.arange(2)], 5)):
    queue.put(message)
got = queue.get(timeout=20)
assert got[1] is got and (got[0] == np.arange(3)).all()
got = queue.get(timeout=20)
same(got, deep)
for message in (mixed, None, (), [], {}, ""):
    same(queue.get(timeout=20), message)
got = queue.get(timeout=20)
assert got.maxlen == 5 and (got[0] == np.arange(2)).all()
"""
)


def test_loops_depth_and_emptiness_are_kept(room):
    """A sibling: whatever pickle can do, a message can."""
    room.run(LOOPS)
