"""What batches look like: in order, in place, in the structure of a sample."""

import collections
import gc

import numpy as np
import pytest
from datasets import (
    AtOnce,
    Into,
    IntoNamed,
    IntoOnly,
    Item,
    Keeping,
    Made,
    Numbers,
    Point,
    Tagged,
    everything,
    ragged,
)

import ropeway as rw
from capsules import Seen, address
from ropeway._views import View


def numbers(batches):
    return [n for batch in batches for n in batch["number"].tolist()]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_come_in_order_epoch_after_epoch(loader, workers, method):
    batches = loader(Numbers(101), batch_size=8, workers=workers, start_method=method)
    assert len(batches) == 13
    for _ in range(3):
        count = 0
        for batch in batches:
            rows = len(batch["number"])
            assert batch["number"].tolist() == list(range(count, count + rows))
            assert (batch["array"] == batch["number"][:, None, None]).all()
            assert batch["array"].dtype == "f4"
            assert batch["array"].shape == (rows, 3, 4)
            count += rows
        assert count == 101


@pytest.mark.parametrize("workers", [0, 1])
def test_the_structure_of_a_sample_is_kept(loader, workers):
    (batch,) = loader(Made(4, everything), batch_size=4, workers=workers)
    assert type(batch["point"]) is Point
    assert batch["point"].x.shape == (4, 3)
    assert batch["point"].y.tolist() == [0, 1, 2, 3]
    assert batch["point"].y.dtype == "i8"
    assert type(batch["tagged"]) is Tagged
    assert list(batch["tagged"]) == ["b", "a"]
    assert batch["tagged"]["a"].dtype == "i2"
    assert batch["tagged"]["b"].dtype == "f8"
    assert type(batch["item"]) is Item
    assert batch["item"].image.shape == (4, 2, 2)
    assert type(batch["ordered"]) is collections.OrderedDict
    assert batch["ordered"]["z"].dtype == bool
    assert batch["ordered"]["y"].dtype == "c16"
    assert batch["default"].default_factory is list
    array, text, (data, nothing) = batch["list"]
    assert (array == np.arange(2) + np.arange(4)[:, None]).all()
    assert text == ["text"] * 4
    assert data == [b"bytes"] * 4
    assert nothing is None
    assert type(batch["list"][2]) is tuple
    assert batch["date"].dtype == "M8[ns]"
    assert batch["none"] is None
    assert batch["object"] == [{1, 2, n} for n in range(4)]
    assert list(batch) == list(everything(0))


@pytest.mark.parametrize("workers", [0, 1])
def test_arrays_of_a_batch_are_aligned_and_writable(loader, workers):
    for batch in loader(Made(6, lambda_free), batch_size=3, workers=workers):
        for array in batch:
            assert array.__array_interface__["data"][0] % 64 == 0
            array[:] = 0


@pytest.mark.parametrize("workers", [0, 1])
def test_frameworks_take_arrays_of_a_batch_as_they_are(loader, workers):
    for batch in loader(Numbers(8), batch_size=4, workers=workers):
        array = batch["array"]
        seen = Seen(array.__dlpack__(max_version=(1, 3)))
        assert not seen.flags
        assert (seen.data, seen.shape) == (address(array), array.shape)
        assert Seen(array.__dlpack__()).name == "dltensor", (
            "it may be written, so the old form does"
        )
        imported = np.from_dlpack(array)
        assert address(imported) == address(array)
        arrow = array.__arrow_c_array__()
        del array, arrow, imported


def test_a_slot_of_a_loader_waits_for_the_tensor(loader):
    def held():
        slots = batches._engine.pool.status().slots
        return [slot.index for slot in slots if slot.stage == "use" and slot.state == "held-write"]

    batches = loader(Numbers(4), batch_size=4, workers=1)
    (batch,) = batches
    tensor = np.from_dlpack(batch["array"])
    del batch
    gc.collect()
    assert held()
    assert (tensor == np.arange(4)[:, None, None]).all()
    del tensor
    assert not held()


def lambda_free(index):
    return np.zeros(3, "u1"), np.zeros((5, 7), "f4"), index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_stays_as_long_as_a_view_of_it_lives(loader, workers):
    batches = loader(Numbers(200), batch_size=2, workers=workers)
    kept = list(batches)
    more = [batch["array"][1] for batch in batches]
    batches.close()
    gc.collect()
    assert numbers(kept) == list(range(200))
    assert [view[0, 0] for view in more] == list(range(1, 200, 2))


@pytest.mark.parametrize("workers", [0, 1])
def test_ragged_samples_are_named(loader, workers):
    batches = loader(Made(4, ragged), batch_size=4, workers=workers)
    with pytest.raises(ValueError, match=r"\['image'\].*\(3, 5\).*\(3, 4\)"):
        next(iter(batches))


@pytest.mark.parametrize("workers", [0, 1])
def test_ragged_samples_come_as_lists_when_asked_for(loader, workers):
    (batch,) = loader(Made(4, ragged), batch_size=4, workers=workers, collate="list")
    assert [array.shape for array in batch["image"]] == [(3, 4), (3, 5), (3, 6), (3, 7)]


@pytest.mark.parametrize("collate", [None, "list"])
@pytest.mark.parametrize("workers", [0, 1])
def test_lists_of_unequal_length_are_named_with_what_helps(loader, workers, collate):
    batches = loader(Made(4, lengthening), batch_size=4, workers=workers, collate=collate)
    found = r"\['words'\]\[0\] is list of length 1, .* length 0: make it an array in the dataset"
    with pytest.raises(ValueError, match=found):
        next(iter(batches))


def lengthening(index):
    return {"words": [[0] * index]}


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_keys_have_the_order_of_the_first_sample_of_their_batch(loader, workers):
    batches = loader(Made(48, turning), batch_size=3, workers=workers)
    orders = [(list(batch), list(batch["inner"]), list(batch["inner"]["y"])) for batch in batches]
    assert orders == [
        (["a", "inner"], ["x", "y"], [1, 2]) if n % 2 == 0 else (["inner", "a"], ["y", "x"], [2, 1])
        for n in range(0, 48, 3)
    ]


def turning(index):
    steps = 1 if index % 2 == 0 else -1
    inner = {"x": 1, "y": dict([(1, "one"), (2, "two")][::steps])}
    outer = {"a": np.zeros(3), "inner": dict([*inner.items()][::steps])}
    return dict([*outer.items()][::steps])


def changing(index):
    return np.zeros((3, 2 + index // 4))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_shape_may_differ_from_batch_to_batch(loader, workers):
    batches = loader(Made(40, changing), batch_size=4, workers=workers)
    assert [batch.shape for batch in batches] == [(4, 3, 2 + n) for n in range(10)]


def padded(samples):
    width = max(sample["image"].shape[1] for sample in samples)
    return {"image": np.zeros((len(samples), 3, width)), "widths": [width], "text": "x" * width}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_function_may_return_anything(loader, workers):
    for batch in loader(Made(40, ragged), batch_size=4, workers=workers, collate=padded):
        assert batch["image"].shape == (4, 3, batch["widths"][0])
        assert batch["text"] == "x" * batch["widths"][0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_may_read_a_batch_at_once(loader, workers):
    batches = list(loader(AtOnce(10), batch_size=4, workers=workers))
    assert [batch["many"].tolist() for batch in batches] == [[4] * 4, [4] * 4, [2] * 2]


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_read_at_once_may_come_from_a_generator(loader, workers):
    assert numbers(loader(Lazily(9), 4, workers)) == list(range(9))


class Lazily(Numbers):
    def __getitems__(self, keys):
        return (self[key] for key in keys)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_class_is_an_object_like_others(loader, workers):
    """Also that of a dataclass."""
    (batch,) = loader(Made(3, classes), 3, workers)
    assert batch == [Item] * 3


def classes(index):
    return Item


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_may_write_into_the_rows(loader, workers):
    batches = loader(Into(101), batch_size=8, workers=workers)
    assert numbers(batches) == list(range(101))


@pytest.mark.parametrize("workers", [0, 2])
def test_every_row_is_written_by_the_dataset_itself(loader, workers):
    batches = loader(IntoOnly(20), batch_size=8, workers=workers)
    assert numbers(batches) == list(range(20))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_has_no_rows_comes_as_samples_do(loader, workers):
    batches = list(loader(IntoNamed(20), batch_size=8, workers=workers))
    assert numbers(batches) == list(range(20))
    assert [name for batch in batches for name in batch["name"]] == [f"n{k}" for k in range(20)]


def test_rows_that_a_dataset_keeps_are_an_error_and_the_loader_goes_on(loader):
    batches = iter(loader(Keeping(40), batch_size=8, workers=1))
    assert numbers([next(batches)]) == list(range(8))
    with pytest.raises(ValueError, match="keeps views"):
        next(batches)
    assert numbers(batches) == list(range(16, 40))


@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_batch_size_samples_come_as_they_are(loader, workers):
    samples = list(loader(Made(9, everything), batch_size=None, workers=workers))
    assert [sample["point"].y for sample in samples] == list(range(9))
    assert type(samples[3]["item"]) is Item
    assert samples[3]["object"] == {1, 2, 3}


KINDS = {float: "f8", int: "i8", bool: "?", complex: "c16", np.float64: "f8", np.int64: "i8"}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [1, 3])
def test_numbers_that_lie_side_by_side_keep_their_types_and_places(loader, workers, size):
    for batch in loader(Made(6, side_by_side), batch_size=size, workers=workers):
        assert type(batch) is dict
        indices = batch["float 0"].tolist()
        assert len(indices) == size
        for (name, array), (kind, code) in zip(batch.items(), kinds(), strict=True):
            assert name.startswith(kind.__name__)
            assert (type(array), array.dtype, array.shape) == (View, np.dtype(code), (size,))
            assert array.tolist() == [value(kind, name, index) for index in indices]
            assert array.flags.writeable
            assert array.flags.c_contiguous


@pytest.mark.parametrize("workers", [0, 1])
def test_a_number_too_large_among_others_is_an_error(loader, workers):
    for make in (too_large, too_large_beside_arrays):
        batches = loader(Made(1, make), batch_size=1, workers=workers)
        with pytest.raises(OverflowError, match=r"\['large'\] is 1180591620717411303424, .*int64"):
            next(iter(batches))


def kinds():
    return [item for item in KINDS.items() for _ in range(5)]


def value(kind, name, index):
    return kind(index + int(name.split()[1]))


def side_by_side(index):
    found = {}
    for number, (kind, _) in enumerate(kinds()):
        name = f"{kind.__name__} {number}"
        found[name] = value(kind, name, index)
    return found


def too_large(_):
    return {"small": 1, "large": 1 << 70, "medium": 2}


def too_large_beside_arrays(_):
    return {"array": np.zeros(2), "large": 1 << 70}


@pytest.mark.parametrize("workers", [0, 2])
def test_scalars_and_empty_arrays_keep_their_shapes(loader, workers):
    (batch,) = loader(Made(4, scalars), batch_size=4, workers=workers)
    assert batch[0].shape == (4,)
    assert batch[0].dtype == "f4"
    assert (batch[0] == 3.5).all()
    assert batch[1].shape == (4, 5, 0)


def scalars(_):
    return np.array(3.5, "f4"), np.zeros((5, 0))


def test_unordered_batches_are_all_there(loader):
    batches = loader(Numbers(400), batch_size=4, workers=2, ordered=False)
    for _ in range(3):
        assert sorted(numbers(batches)) == list(range(400))


def test_a_slow_sample_holds_only_its_own_batch_back_if_unordered(loader):
    from datasets import Slow

    batches = loader(Slow(40, 0.5, slow=[0]), batch_size=4, workers=2, ordered=False)
    firsts = [int(batch["number"][0]) for batch in batches]
    assert sorted(firsts) == list(range(0, 40, 4))
    assert firsts[0] != 0


@pytest.mark.parametrize("workers", [0, 2])
def test_drop_last(loader, workers):
    batches = loader(Numbers(10), batch_size=4, workers=workers, drop_last=True)
    assert len(batches) == 2
    assert numbers(batches) == list(range(8))


def test_arguments_that_cannot_be_are_refused():
    data = Numbers(4)
    with pytest.raises(ValueError, match="shuffle"):
        rw.Loader(data, shuffle=True, sampler=[1])
    with pytest.raises(ValueError, match="batch_sampler"):
        rw.Loader(data, batch_sampler=[[1]], drop_last=True)
    with pytest.raises(TypeError, match="__getitem__"):
        rw.Loader(5)
    with pytest.raises(ValueError, match="start_method"):
        rw.Loader(data, start_method="thread")
    with pytest.raises(ValueError, match="workers"):
        rw.Loader(data, workers=-1)
    with pytest.raises(ValueError, match="workers must be at most 1024, found 1000000"):
        rw.Loader(data, workers=10**6)
    with pytest.raises(TypeError, match="batch_size"):
        rw.Loader(data, batch_size="8")
    with pytest.raises(TypeError, match=r"seed.*'x'"):
        rw.Loader(data, seed="x")
    with pytest.raises(TypeError, match=r"timeout.*'x'"):
        rw.Loader(data, timeout="x")
    with pytest.raises(ValueError, match="timeout"):
        rw.Loader(data, timeout=float("nan"))
    with pytest.raises(TypeError, match=r"a sampler is iterable, found 5"):
        rw.Loader(data, sampler=5)
    with pytest.raises(ValueError, match=r"prefetch must be at most 65536"):
        rw.Loader(data, prefetch=1 << 40)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_large_bytes_come_as_they_were(loader, workers):
    for batch in loader(Made(24, with_bytes), 4, workers):
        for row, index in enumerate(batch["index"].tolist()):
            sample = with_bytes(index)
            for key in ("large", "mixed", "inside"):
                assert batch[key][row] == sample[key]
                assert type(batch[key][row]) is type(sample[key])


def test_large_bytes_lie_beside_the_metadata(loader):
    batches = loader(Made(8, with_bytes), 4, 1)
    seen = []
    iterator = iter(batches)
    opened = batches._engine._opened

    def noted(lease):
        seen.append((lease.keys(), len(lease.meta_bytes)))
        return opened(lease)

    batches._engine._opened = noted
    list(iterator)
    assert seen
    assert all("blobs" in keys and size < 30_000 for keys, size in seen)


def with_bytes(index):
    large = bytes([index]) * (100_000 + index)
    return {
        "index": index,
        "large": large,
        "mixed": large if index % 2 else f"text {index}",
        "inside": (b"small", bytearray(5))[index % 2],
    }
