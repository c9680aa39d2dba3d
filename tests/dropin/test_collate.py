"""Batches are those of torch: values, dtypes, strides, containers, and refusals."""

import warnings

import pytest
import sets
import torch
from alike import assert_alike, taken
from torch.utils.data import DataLoader as Theirs

from ropeway.torch import DataLoader as Ours


def both(dataset, **options):
    """What torch's loader gives, and what ours does, from equal seeds."""
    results = []
    for kind in (Theirs, Ours):
        torch.manual_seed(7)
        results.append(taken(kind(dataset, **{"num_workers": 1, **options})))
    return results


@pytest.mark.parametrize("sample", sets.SAMPLES)
def test_default_collate_gives_what_torch_gives(sample):
    theirs, ours = both(sets.Samples(sample), batch_size=4)
    assert len(theirs) == 3
    assert_alike(theirs, ours)


@pytest.mark.parametrize("sample", sets.SAMPLES)
def test_default_convert_gives_what_torch_gives(sample):
    if sample in ("needs grad", "sparse", "nested"):
        return  # see below
    assert_alike(*both(sets.Samples(sample, 3), batch_size=None))


def test_leaves_that_require_grad_travel():
    for batch in both(sets.Samples("needs grad", 2), batch_size=None):
        assert [t.requires_grad and t.is_leaf for t in batch] == [True, True]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_tensors_travel():
    """torch's loader hangs here."""
    (batch,) = Ours(sets.Samples("sparse", 1), None, num_workers=1)
    assert batch.layout is torch.sparse_coo
    assert torch.equal(batch.to_dense(), torch.eye(3))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_travel():
    """Torch's loader hangs here, too."""
    (batch,) = Ours(sets.Samples("nested", 1), None, num_workers=1)
    assert batch.is_nested
    assert [len(row) for row in batch.unbind()] == [2, 3]


@pytest.mark.parametrize("collate", [sets.add_one_to_labels, sets.wrapped, list, tuple])
def test_collate_functions_of_ones_own(collate):
    assert_alike(*both(sets.Numbers(10), batch_size=4, collate_fn=collate))


def test_a_batch_read_at_once():
    assert_alike(*both(sets.Many(10), batch_size=4))


def test_without_workers_it_is_torchs_own_path():
    loader = Ours(sets.Numbers(10), batch_size=4)
    iterator = iter(loader)
    assert type(iterator) is type(iter(Theirs(sets.Numbers(10))))
    assert_alike(*both(sets.Numbers(10), batch_size=4, num_workers=0))


def test_functions_added_to_torchs_table_are_used(monkeypatch):
    """F1: users extend `default_collate_fn_map` in place."""
    from torch.utils.data._utils.collate import default_collate_fn_map as table

    monkeypatch.setitem(table, type, lambda batch, collate_fn_map=None: len(batch))
    assert_alike(*both(sets.Samples("object"), batch_size=4, multiprocessing_context="fork"))
    monkeypatch.setitem(table, torch.Tensor, lambda batch, collate_fn_map=None: "tensors")
    theirs, ours = both(sets.Samples("large"), batch_size=4, multiprocessing_context="fork")
    assert theirs == ours == ["tensors"] * 3


def test_a_kept_buffer_is_read_when_the_sample_comes():
    """What differs on purpose: torch stacks at the end, when the buffer holds the last sample."""

    class Kept(sets.Numbers):
        buffer = torch.zeros(5000)

        def __getitem__(self, index):
            return self.buffer.fill_(index)

    (batch,) = Ours(Kept(4), batch_size=4, num_workers=1, multiprocessing_context="fork")
    assert batch[:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("pin_memory_device", ["", "cuda"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_pinning_without_an_accelerator_warns_and_does_nothing(kind, workers, pin_memory_device):
    """E1."""
    loader = kind(
        sets.Numbers(4),
        2,
        num_workers=workers,
        pin_memory=True,
        pin_memory_device=pin_memory_device,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = list(loader)
    said = [str(warning.message) for warning in caught]
    assert any("no accelerator is found" in text for text in said)
    assert any("pin_memory_device is deprecated" in t for t in said) == bool(pin_memory_device)
    assert not any(batch["image"].is_pinned() for batch in batches)
