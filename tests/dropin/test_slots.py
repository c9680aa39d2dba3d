"""Batches lie in slots, and a slot is the program's as long as a tensor of it lives."""

import gc

import pytest
import sets
import torch

import ropeway as rw
from ropeway.torch import DataLoader


def in_use(iterator):
    slots = iterator._context.pool.status().slots
    return sum(slot.stage == "use" and slot.state != "idle" for slot in slots)


def test_a_tensor_holds_its_slot_and_can_be_written_to():
    iterator = iter(DataLoader(sets.Numbers(40), 4, num_workers=2))
    batch = next(iterator)
    assert in_use(iterator) >= 1
    before = in_use(iterator)
    row = batch["image"][1, 2]
    del batch
    assert in_use(iterator) == before
    row += 1
    assert torch.equal(row, torch.full((16, 16), 2.0))
    del row
    assert in_use(iterator) == before - 1


def test_numbers_alone_hold_no_slot():
    iterator = iter(DataLoader(sets.Numbers(40), 4, num_workers=2))
    labels = [batch["label"] for batch in iterator]
    assert in_use(iterator) == 0
    assert torch.cat(labels).tolist() == list(range(40))


def test_the_default_collation_copies_nothing_and_slots_are_used_again():
    iterator = iter(DataLoader(sets.Numbers(400), 4, num_workers=1))
    addresses = {batch["image"].data_ptr() for batch in iterator}
    assert len(addresses) <= 4
    storages = [
        batch["image"].untyped_storage().nbytes()
        for batch in DataLoader(sets.Numbers(8), 4, num_workers=1)
    ]
    assert storages == [4 * 3 * 16 * 16 * 4] * 2


@pytest.mark.parametrize("persistent", [True, False])
def test_all_batches_may_be_kept_across_epochs_and_the_end(persistent):
    loader = DataLoader(sets.Numbers(60), 4, num_workers=2, persistent_workers=persistent)
    kept = [list(loader) for _ in range(2)]
    if persistent:
        loader._iterator._shutdown_workers()
    del loader
    gc.collect()
    for epoch in kept:
        for batch in epoch:
            assert (batch["image"] == batch["label"].view(-1, 1, 1, 1)).all()
        assert torch.cat([batch["label"] for batch in epoch]).tolist() == list(range(60))


def test_when_there_is_no_room_it_says_who_keeps_it_and_goes_on_with_room(monkeypatch):
    monkeypatch.setattr("ropeway.torch.spare._MOST_SLOTS", 5)
    iterator = iter(DataLoader(sets.Numbers(48), 4, num_workers=2))
    kept = [next(iterator) for _ in range(5)]
    with pytest.raises(rw.OutOfMemory, match="5 batches are kept by the program"):
        next(iterator)
    for number in range(5, 12):
        kept.pop(0)
        kept.append(next(iterator))
        assert kept[-1]["label"].tolist() == list(range(4 * number, 4 * number + 4))


def test_a_collate_function_around_torchs_stacks_in_the_slot():
    data = sets.Numbers(8, (3, 40, 40))
    for batch in DataLoader(data, 4, num_workers=1, collate_fn=sets.around):
        assert batch["shared"] is False  # torch would have made shared memory of its own
        assert (batch["image"] == batch["label"].view(-1, 1, 1, 1)).all()


def test_a_collate_function_may_keep_its_batches():
    data = sets.Numbers(24, (3, 40, 40))
    iterator = iter(DataLoader(data, 4, num_workers=1, collate_fn=sets.Remembering()))
    for number, batch in enumerate(iterator):
        assert batch["label"].tolist() == list(range(4 * number, 4 * number + 4))
        assert (batch["image"] == batch["label"].view(-1, 1, 1, 1)).all()
    assert iterator._workers[0].restarts == 0


def test_a_slice_of_something_large_brings_only_itself():
    """torch moves the whole to shared memory, once; here only what is seen travels."""
    (batch,) = DataLoader(Slices(), None, num_workers=1, multiprocessing_context="fork")
    one, two, far = batch
    assert max(t.untyped_storage().nbytes() for t in batch) < 1 << 20
    assert one[4, 0] == 9000
    assert two[0, 0] == 6000
    assert far[0, 0] == 900_000
    one[1] = -1.0
    assert (two[0] == -1).all()  # what overlaps still does


class Slices(sets.Numbers):
    def __init__(self):
        super().__init__(1)
        self.whole = torch.arange(1000.0).mul(1000).repeat_interleave(1000).view(1000, 1000)

    def __getitem__(self, index):
        return [self.whole[5:10], self.whole[6:9], self.whole[900:901]]
