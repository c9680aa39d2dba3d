"""Pinning is torch's: its thread takes batches out of slots. The accelerator is pretended."""

import collections
import threading

import pytest
import sets
import torch
from alike import assert_alike, told
from torch.utils.data import DataLoader as Theirs

from ropeway.torch import DataLoader as Ours

Pair = collections.namedtuple("Pair", "one two")


class Own:
    """Has a way of its own to be pinned."""

    def __init__(self, samples):
        self.samples, self.pinned = samples, False

    def pin_memory(self):
        self.pinned = threading.current_thread().name
        return self

    def __eq__(self, other):
        return (self.samples, bool(self.pinned)) == (other.samples, bool(other.pinned))


class Unmakeable(sets.Frozen):
    """... and can't be made again from what is in it."""

    def __init__(self, one, two):
        super().__init__({"one": one, "two": two})


COLLATE = {
    "tensor": lambda samples: torch.stack([s["image"] for s in samples]),
    "own": lambda samples: Own([s["label"] for s in samples]),
    "text": lambda samples: ["text", b"bytes", 3, None, {1, 2}],
    "named dict": lambda samples: sets.Named(a=samples[0]["image"], b="text"),
    "frozen": lambda samples: sets.Frozen({"a": samples[0]["image"]}),
    "unmakeable": lambda samples: Unmakeable(samples[0]["image"], 2),
    "namedtuple": lambda samples: Pair(samples[0]["image"], [samples[1]["image"]]),
    "tuple": lambda samples: (samples[0]["image"], (1, 2)),
    "row": lambda samples: sets.Row([samples[0]["image"], 2]),
    "range": lambda samples: range(3),
}


@pytest.fixture
def pinned(monkeypatch):
    """Pretends that there is an accelerator; a list of the threads that pinned something."""
    found = []

    def pin(tensor):
        if tensor.dtype == torch.int8:
            raise ValueError("no room for this")
        found.append(threading.current_thread().name)
        return tensor.clone()

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda")
    )
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda *_: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("what", COLLATE)
def test_what_is_pinned_and_what_comes_out_is_torchs(pinned, what, workers):
    """C4, E2."""
    results = []
    for kind in (Theirs, Ours):
        loader = kind(
            sets.Numbers(8),
            4,
            num_workers=workers,
            pin_memory=True,
            collate_fn=COLLATE[what],
            multiprocessing_context="fork" if workers else None,
        )
        results.append([list(loader), len(pinned)])
        pinned.clear()
    assert_alike(*results)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_thread_pins_and_ends_with_its_iterator(kind, pinned, persistent):
    """A16."""
    loader = kind(
        sets.Numbers(16), 4, num_workers=2, pin_memory=True, persistent_workers=persistent
    )
    for _ in range(2):
        iterator = iter(loader)
        thread = iterator._pin_memory_thread
        assert thread.is_alive()
        assert thread.daemon
        labels = [n for batch in iterator for n in batch["label"].tolist()]
        assert labels == list(range(16))
        assert thread.is_alive() == persistent
    iterator._shutdown_workers()
    assert not thread.is_alive()
    assert set(pinned) == {thread.name} or not persistent


def test_what_is_pinned_holds_no_slot(pinned):
    iterator = iter(Ours(sets.Numbers(16), 4, num_workers=1, pin_memory=True))
    kept = list(iterator)
    slots = iterator._context.pool
    assert sum(slot.state == "held-write" for slot in slots.status().slots) == 0
    assert [batch["image"][3, 0, 0, 0].item() for batch in kept] == [3, 7, 11, 15]


def test_an_error_of_the_thread_is_named_by_it(pinned):
    """E2."""
    errors = []
    for kind in (Theirs, Ours):
        iterator = iter(kind(sets.Samples("int8", 2), 2, num_workers=1, pin_memory=True))
        with pytest.raises(ValueError, match="in pin memory thread for device 0") as caught:
            next(iterator)
        errors.append(told(caught.value))
        iterator._shutdown_workers()
    assert_alike(*errors)
