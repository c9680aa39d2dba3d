"""PyTorch: tensors over our memory."""

from typing import Any

from ropeway._like import refuse_read_only
from ropeway._views import AnyArray


def asarray(x: AnyArray) -> Any:
    """A tensor that aliases the array."""
    import torch

    refuse_read_only(x, "PyTorch")
    return torch.from_dlpack(x)
