"""Datasets for tests: in a module of their own, so that every worker can import them."""

import collections
import dataclasses
import os
import random
import signal
import time

import numpy as np

import ropeway as rw

Point = collections.namedtuple("Point", "x y")


class Tagged(dict):
    def tags(self):
        return sorted(self)


@dataclasses.dataclass(frozen=True)
class Item:
    image: np.ndarray
    label: int


class Numbers:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"array": np.full((3, 4), index, "f4"), "number": index}


class Made(Numbers):
    """Samples that a function makes."""

    def __init__(self, length, make):
        super().__init__(length)
        self.make = make

    def __getitem__(self, index):
        return self.make(index)


def everything(index):
    return {
        "point": Point(np.full(3, index, "f4"), index),
        "tagged": Tagged(b=float(index), a=np.int16(index)),
        "item": Item(np.full((2, 2), index, "u1"), index),
        "ordered": collections.OrderedDict(z=True, y=complex(index)),
        "default": collections.defaultdict(list, k=1),
        "list": [np.arange(2) + index, "text", (b"bytes", None)],
        "date": np.datetime64("2010-01-01", "ns") + np.timedelta64(index, "ns"),
        "none": None,
        "object": {1, 2, index},
    }


def ragged(index):
    return {"image": np.zeros((3, 4 + index % 5))}


class AtOnce(Numbers):
    def __getitems__(self, keys):
        return [{"array": np.full(2, key), "many": len(keys)} for key in keys]


class Into(Numbers):
    def __getitem_into__(self, index, out):
        out["array"][:] = index
        out["number"][...] = index


class IntoOnly(Into):
    def __getitem__(self, index):
        return super().__getitem__(-1)


class Keeping(Into):
    kept: list = []  # noqa: RUF012

    def __getitem_into__(self, index, out):
        super().__getitem_into__(index, out)
        if index == 9:
            self.kept.append(out["array"])


class Random(Numbers):
    def __getitem__(self, index):
        return (
            index,
            random.randrange(1 << 31),
            random.randrange(1 << 31),
            np.random.randint(0, 1 << 31),
            float(np.random.randn()),
        )


class RandomLater(Numbers):
    """Writes to rows, and draws from some sample on: first Python's numbers, then NumPy's."""

    def __getitem__(self, index):
        return {"drawn": np.zeros(3)}

    def __getitem_into__(self, index, out):
        out["drawn"][:] = index, 0, 0
        if index >= 29:
            out["drawn"][1] = random.random()
        if index >= 51:
            out["drawn"][2] = np.random.random()


class Info(Numbers):
    def __getitem__(self, index):
        info = rw.worker_info()
        return index, info.epoch, int(info.rng.integers(1 << 31)), info.seed >> 1


class Epochs(Numbers):
    epoch = -1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return self.epoch, index


class Deadly(Numbers):
    """Some samples kill their worker, those of `once` only the first time."""

    def __init__(self, length, folder, once=(), always=(), how=signal.SIGKILL):
        super().__init__(length)
        self.folder, self.once, self.always, self.how = str(folder), once, always, how

    def __getitem__(self, index):
        if index in self.always or (index in self.once and self.is_first(index)):
            if self.how is None:
                os._exit(3)
            os.kill(os.getpid(), self.how)
            time.sleep(60)
        return super().__getitem__(index)

    def is_first(self, index):
        try:
            os.close(os.open(f"{self.folder}/{index}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class Slow(Numbers):
    def __init__(self, length, seconds=0.01, slow=None):
        super().__init__(length)
        self.seconds, self.slow = seconds, slow

    def __getitem__(self, index):
        if self.slow is None or index in self.slow:
            time.sleep(self.seconds)
        return super().__getitem__(index)


class TwoArguments(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Failing(Numbers):
    def __init__(self, length, error, bad=(5,)):
        super().__init__(length)
        self.error, self.bad = error, bad

    def __getitem__(self, index):
        if index in self.bad:
            raise self.error
        return super().__getitem__(index)


class Pid(Numbers):
    def __getitem__(self, index):
        return os.getpid()


class Stream:
    """An iterable dataset that each worker reads in full."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


class Sharded(Stream):
    """An iterable dataset that shards itself."""

    def __iter__(self):
        info = rw.worker_info()
        step, first = (1, 0) if info is None else (info.workers, info.id)
        return iter(range(first, self.length, step))


class DeadlyStream:
    def __init__(self, *args, **kwargs):
        self.inner = Deadly(*args, **kwargs)

    def __iter__(self):
        for index in range(self.inner.length):
            yield self.inner[index]["number"]


class IntoNamed(Into):
    """Can't be written to rows, as there is a name in it."""

    def __getitem__(self, index):
        return {**super().__getitem__(index), "name": f"n{index}"}


class RandomStream(Stream):
    def __iter__(self):
        for index in range(self.length):
            yield index, np.random.randint(1 << 31)


def shaken(samples):
    return [sample["number"] for sample in samples], np.random.randint(1 << 31)


class Unreadable:
    """What can be pickled, and then can't be unpickled if it has a value."""

    def __init__(self, value):
        self.value = value

    def __reduce__(self):
        return unreadable if self.value is not None else Unreadable, (self.value,)


def unreadable(value):
    raise ValueError(f"{value} can't be read here")
