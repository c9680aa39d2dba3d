"""Samples that hold PyTorch's tensors: rows of NumPy arrays, without a copy in between."""

import numpy as np
import pytest
from datasets import Made

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_are_written_to_rows(loader, workers):
    for batch in loader(Made(40, tensors), 8, workers):
        image, (label, weight), name = batch["image"], batch["pair"], batch["name"]
        assert (image.dtype, image.shape) == (np.float32, (8, 3, 5))
        assert (label.dtype, label.shape) == (np.int64, (8,))
        assert (weight.dtype, weight.shape) == (np.float16, (8, 2))
        assert image[:, 0, 0].tolist() == label.tolist() == weight[:, 1].tolist()
        assert name == [str(index) for index in label.tolist()]


def test_their_generator_is_seeded_for_each_sample(loader):
    epochs = [
        [batch.tolist() for batch in loader(Made(16, drawn), 4, workers, seed=5)]
        for workers in (0, 1, 2)
    ]
    assert epochs[0] == epochs[1] == epochs[2]
    assert len({x for batch in epochs[0] for x in batch}) == 16


def test_ragged_tensors_are_refused_by_name(loader):
    with pytest.raises(ValueError, match=r"field \['image'\].*\(2,\)"):
        list(loader(Made(8, ragged), 4, 2))


def test_a_tensor_of_another_device_is_refused(loader):
    with pytest.raises(TypeError, match="device"):
        list(loader(Made(4, elsewhere), 4, 2))


def tensors(index):
    return {
        "image": torch.full((3, 5), float(index), requires_grad=bool(index % 2)),
        "pair": (torch.tensor(index), torch.full((2,), index, dtype=torch.float16)),
        "name": str(index),
    }


def drawn(_):
    return torch.randint(1 << 40, ())


def ragged(index):
    return {"image": torch.zeros(1 + index)}


def elsewhere(_):
    return torch.zeros(3, device="meta")
