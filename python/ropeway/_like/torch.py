"""PyTorch: tensors over our memory."""

import re
from typing import Any

from ropeway._like import refuse_dtypes, refuse_read_only
from ropeway._views import AnyArray

_NUMBERS = re.compile(r"bool|b?(float|complex|u?int)\d+\w*")


def asarray(x: AnyArray) -> Any:
    """A tensor that aliases the array."""
    import torch

    refuse_read_only(x, "PyTorch")
    name = x.dtype.name
    if _NUMBERS.fullmatch(name) and not hasattr(torch, name):
        refuse_dtypes(x, "PyTorch", (name,))
    if min(x.strides, default=0) < 0:
        raise BufferError(f"PyTorch takes no negative strides, found {x.strides}: give it x.copy()")
    return torch.from_dlpack(x)
