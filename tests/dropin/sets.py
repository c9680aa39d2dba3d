"""Datasets and functions that processes of every start method can import."""

import datetime
import os
import random
import signal
import time
from collections import OrderedDict, UserDict, UserList, deque, namedtuple
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch isn't installed: `make test-torch` sets it up")

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

Point = namedtuple("Point", ["x", "y", "meta"])


class Named(dict):
    """A dict with a method."""

    def name(self):
        return "named"


class Frozen(Mapping):
    """A mapping that can't be changed."""

    def __init__(self, items=(), **more):
        self.given = dict(items, **more)

    def __getitem__(self, key):
        return self.given[key]

    def __iter__(self):
        return iter(self.given)

    def __len__(self):
        return len(self.given)


class Row(list):
    """A list with a method."""

    def name(self):
        return "row"


class Numbers(Dataset):
    """Small and large tensors that hold their index."""

    def __init__(self, length=40, shape=(3, 16, 16)):
        self.length, self.shape = length, shape

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"image": torch.full(self.shape, float(index)), "label": index}


SAMPLES = {
    "float": lambda i: i / 2,
    "int": lambda i: i,
    "bool": lambda i: i % 2 == 0,
    "str": str,
    "bytes": lambda i: str(i).encode(),
    "tensor": lambda i: torch.full((2, 3), i),
    "0-d": lambda i: torch.tensor(i),
    "empty": lambda i: torch.zeros(0, 3),
    "large": lambda i: torch.full((40, 50), float(i)),
    "transposed": lambda i: torch.arange(6000).view(60, 100).t() + i,
    "expanded": lambda i: torch.tensor([float(i)]).expand(3000),
    "bfloat16": lambda i: torch.full((2000,), i, dtype=torch.bfloat16),
    "float16": lambda i: torch.full((2000,), i, dtype=torch.float16),
    "complex": lambda i: torch.full((2000,), i + 1j),
    "conjugate": lambda i: torch.full((2000,), i + 1j).conj(),
    "int8": lambda i: torch.full((5000,), i, dtype=torch.int8),
    "uint8": lambda i: torch.full((5000,), i, dtype=torch.uint8),
    "bools": lambda i: torch.full((5000,), i % 2 == 0),
    "ndarray": lambda i: np.full((2, 3), i),
    "large ndarray": lambda i: np.full((40, 50), i, "f4"),
    "uint16 ndarray": lambda i: np.full((4000,), i, "u2"),
    "fortran ndarray": lambda i: np.asfortranarray(np.arange(6000.0).reshape(60, 100) + i),
    "memmap": lambda i: np.memmap(__file__, mode="r", shape=(40,)),
    "0-d ndarray": lambda i: np.array(i),
    "numpy scalar": lambda i: np.float32(i),
    "numpy bool": lambda i: np.bool_(i % 2),
    "dict": lambda i: {"b": i, "a": torch.full((2000,), i), "c": {"d": [i, str(i)]}},
    "ordered": lambda i: OrderedDict(b=i, a=np.full(2000, i)),
    "named dict": lambda i: Named(a=i, b=torch.full((2000,), i)),
    "user dict": lambda i: UserDict({"a": i, "b": torch.full((2000,), i)}),
    "tuple": lambda i: (i, torch.full((2000,), i), "x"),
    "list": lambda i: [i, torch.full((2000,), i), (i, i)],
    "row": lambda i: Row([i, torch.full((2000,), i)]),
    "range": lambda i: range(i, i + 3),
    "namedtuple": lambda i: Point(torch.full((2000,), i), i, {"k": [np.full(2, i), "t"]}),
    "same twice": lambda i: [torch.full((2000,), i)] * 2,
    "frozen": lambda i: Frozen(a=i, b=torch.full((2000,), i)),
    "user list": lambda i: UserList([i, torch.full((2000,), i)]),
    "numpy str": lambda i: np.str_(i),
    "enum": lambda i: signal.SIGINT,
    "parameter": lambda i: torch.nn.Parameter(torch.full((3,), float(i)), requires_grad=False),
    # What torch refuses, each with a text of its own.
    "None": lambda i: None,
    "object": lambda i: object,
    "date": lambda i: datetime.date(2020, 1, 1),
    "set": lambda i: {i},
    "deque": lambda i: deque([i, i]),
    "float128": lambda i: np.full(3, i, np.longdouble),
    "date array": lambda i: np.full(3, i, "M8[s]"),
    "record": lambda i: np.zeros(3, [("a", "i4"), ("b", "f8")]),
    "big-endian": lambda i: np.full(3, i, ">f4"),
    "negative strides": lambda i: np.arange(5)[::-1],
    "too large": lambda i: 1 << 70,
    "nested": lambda i: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    "string array": lambda i: np.array(["a", "b"]),
    "bytes array": lambda i: np.array([b"a", b"b"]),
    "object array": lambda i: np.array([None, 1]),
    "needs grad": lambda i: torch.full((2000,), float(i), requires_grad=True),
    "sparse": lambda i: torch.eye(3).to_sparse(),
    "unequal lists": lambda i: [i] * (1 + i % 3),
    "unequal shapes": lambda i: torch.zeros(2000 + (i == 2)),
    "unequal dtypes": lambda i: torch.zeros(2000, dtype=torch.float64 if i == 2 else torch.float32),
    "unequal categories": lambda i: torch.full((2000,), 1.5 if i == 2 else 1),
    "narrower later": lambda i: torch.zeros(2000, dtype=torch.int64 if i % 4 == 0 else torch.int32),
    "unequal kinds": lambda i: i if i == 2 else torch.zeros(2000),
    "other keys": lambda i: {"a" if i != 2 else "b": torch.zeros(2000)},
}


class Samples(Dataset):
    """Samples of one kind."""

    def __init__(self, kind, length=10):
        self.kind, self.length = kind, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return SAMPLES[self.kind](index)


class Many(Numbers):
    """Read a batch at a time."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class AtOnce(Numbers):
    """Can't be read a batch at a time."""

    def __getitems__(self, indices):
        raise ValueError("all of them")


class Keyed(Dataset):
    """Keys of any type, and no length."""

    def __getitem__(self, key):
        return f"{key!r}", torch.full((2000,), float(len(str(key))))


class Drawing(Dataset):
    """Random numbers of all generators, and which worker drew them."""

    def __init__(self, length=24):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        info = get_worker_info()
        return (
            index,
            torch.rand(1500),
            np.random.randint(0, 1 << 31),
            random.randrange(1 << 31),
            -1 if info is None else info.id,
            -1 if info is None else info.seed,
        )


class Deadly(Drawing):
    """Draws, too, and ends its worker at some indices, the first time or always."""

    def __init__(self, length, folder, once=(), always=(), how=signal.SIGKILL):
        super().__init__(length)
        self.folder, self.once, self.always, self.how = str(folder), once, always, how

    def __getitem__(self, index):
        drawn = super().__getitem__(index)
        if index in self.always or (index in self.once and self.is_first(index)):
            if self.how is None:
                os._exit(3)
            os.kill(os.getpid(), self.how)
        return drawn

    def is_first(self, index):
        try:
            Path(self.folder, str(index)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class Stream(IterableDataset):
    """A stream that shards itself, and may draw or die."""

    def __init__(self, length=30, sized=None, folder=None, once=(), sharded=True):
        self.length, self.sized, self.sharded = length, sized, sharded
        self.deadly = None if folder is None else Deadly(length, folder, once)

    def __iter__(self):
        info = get_worker_info()
        part, parts = (0, 1) if info is None or not self.sharded else (info.id, info.num_workers)
        for index in range(part, self.length, parts):
            if self.deadly is not None and index in self.deadly.once:
                self.deadly[index]
            yield index, torch.rand(1500), random.randrange(1 << 31)

    def __len__(self):
        if self.sized is None:
            raise TypeError("no length")
        return self.sized


class Unwilling(Stream):
    """A stream that each worker can begin only once."""

    begun = False

    def __iter__(self):
        if self.begun:
            raise ValueError("not again")
        self.begun = True
        return super().__iter__()


class Interrupted(Numbers):
    """Interrupts its worker when it is unpickled there."""

    def __setstate__(self, state):
        vars(self).update(state)
        os.kill(os.getpid(), signal.SIGINT)


class Failing(Dataset):
    """Raises at some indices."""

    def __init__(self, error, at=(3,), length=8):
        self.error, self.at, self.length = error, at, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.at:
            raise self.error
        return torch.full((2000,), float(index))


class Slow(Dataset):
    """Sleeps at some indices."""

    def __init__(self, length, slow, seconds):
        self.length, self.slow, self.seconds = length, slow, seconds

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.slow:
            time.sleep(self.seconds)
        return index


class Info(Dataset):
    """What a worker is told about itself."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        info = get_worker_info()
        with_dataset = info.dataset is self
        return (info.id, info.num_workers, info.seed, with_dataset, os.getpid(), repr(info)[:20])


class Two(Exception):
    """Can't be made from one argument."""

    def __init__(self, one, two):
        super().__init__(one, two)


class Spoken(Exception):
    """Has its text in a field, as torch knows it."""

    message = "spoken"

    def __init__(self, message=None):
        super().__init__(message)
        self.message = message


def add_one_to_labels(samples):
    """A collate function."""
    images = torch.stack([sample["image"] for sample in samples])
    return {"image": images, "label": [sample["label"] + 1 for sample in samples]}


def refusing(samples):
    """A collate function that fails."""
    raise ValueError("all of them")


def wrapped(samples):
    """A collate function around the default one."""
    batch = torch.utils.data.default_collate(samples)
    batch["image"] = batch["image"] * 2
    return batch


def around(samples):
    """A collate function that tells where the default one has stacked."""
    batch = torch.utils.data.default_collate(samples)
    return batch | {"shared": batch["image"].is_shared()}


class Remembering:
    """A collate function that keeps what it has returned."""

    def __init__(self):
        self.kept = []

    def __call__(self, samples):
        batch = torch.utils.data.default_collate(samples)
        self.kept.append(batch)
        assert all((b["image"][:, 0, 0, 0] == b["label"]).all() for b in self.kept)
        return batch


def set_threads(worker):
    """A worker_init_fn that shows."""
    info = get_worker_info()
    assert info.id == worker
    info.dataset.length = 10 * (worker + 1)


def failing_init(worker):
    """A worker_init_fn that fails."""
    if worker == 1:
        raise ValueError("not today")


def drawing_init(worker):
    """A worker_init_fn that draws."""
    np.random.rand(3), torch.rand(2), random.random()
