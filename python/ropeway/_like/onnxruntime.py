"""ONNX Runtime: values over our memory."""

from typing import Any

import numpy as np

from ropeway._like import refuse_dtypes
from ropeway._views import AnyArray


def asarray(x: AnyArray) -> Any:
    """An OrtValue that aliases the array, which must be in C order; inputs are only read."""
    import onnxruntime

    refuse_dtypes(x, "ONNX Runtime", ("complex64", "complex128"))
    if not x.flags.c_contiguous:
        raise BufferError("ONNX Runtime takes arrays in C order without gaps: give it x.copy()")
    if x.flags.writeable:
        return onnxruntime.OrtValue.from_dlpack(x)
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(x))
