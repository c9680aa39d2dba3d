"""Compares what two loaders give, down to dtypes, strides and types of containers."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch


def told(error):
    """An exception, without the frames of its remote traceback and our note at its end."""
    text = re.sub(r"0x[0-9a-f]+|\(pid\(s\) .*?\)", "", str(error))
    lines = [line for line in text.splitlines() if line and not line.startswith("at sample")]
    whole = [line for line in lines if not line.startswith(" ")]
    return type(error), whole


def taken(loader):
    """All that a loader gives: batches, and exceptions where it raises them."""
    found = []
    try:
        batches = iter(loader)
    except Exception as error:
        return [told(error)]
    while True:
        try:
            found.append(next(batches))
        except StopIteration:
            return found
        except Exception as error:
            found.append(told(error))


def assert_alike(one, two, where="batch"):
    """Raises AssertionError where two things differ."""
    assert type(one) is type(two), (where, type(one), type(two))
    if isinstance(one, torch.Tensor):
        assert one.dtype == two.dtype, where
        assert one.shape == two.shape, where
        assert one.layout == two.layout, where
        assert one.requires_grad == two.requires_grad, where
        assert one.is_contiguous() == two.is_contiguous(), where
        if one.layout is torch.strided:
            assert one.stride() == two.stride(), where
        assert torch.equal(one.to_dense(), two.to_dense()), where
    elif isinstance(one, np.ndarray):
        assert one.dtype == two.dtype, where
        assert one.flags.writeable == two.flags.writeable, where
        np.testing.assert_array_equal(one, two)
    elif isinstance(one, Mapping):
        assert list(one) == list(two), where
        for key in one:
            assert_alike(one[key], two[key], f"{where}[{key!r}]")
    elif isinstance(one, Sequence) and not isinstance(one, str | bytes):
        assert len(one) == len(two), (where, one, two)
        for number, pair in enumerate(zip(one, two, strict=True)):
            assert_alike(*pair, f"{where}[{number}]")
    else:
        assert one == two, where
