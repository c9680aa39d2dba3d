"""PyTorch looks at our memory where it may write."""

import pytest
import torch

import ropeway as rw
from capsules import address
from slots import state, taken

torch.zeros(1)


def test_torch_sees_the_same_memory_if_it_may_write():
    pool, slot = taken((4, 6), private=True)
    tensor = rw.asarray(slot.array, like="torch")
    assert tensor.data_ptr() == address(slot.array)
    tensor[0, 0] = 5
    assert slot.array[0, 0] == 5
    assert torch.from_dlpack(slot.array).shape == (4, 6)
    del tensor
    slot.release()
    pool, slot = taken((4, 6))
    with pytest.raises(BufferError, match="private=True"):
        rw.asarray(slot.array, like="torch")
    slot.release()
    assert state(pool) == "idle"
