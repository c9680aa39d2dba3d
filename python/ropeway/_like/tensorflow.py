"""TensorFlow: tensors over our memory, by the old capsule."""

from typing import Any

from ropeway._like import refuse_dtypes, refuse_unaligned
from ropeway._views import AnyArray


def asarray(x: AnyArray) -> Any:
    """A tensor that aliases the array, which must be writable and in C order."""
    import tensorflow

    if x.dtype.name.startswith("float8"):
        refuse_dtypes(x, "TensorFlow", (x.dtype.name,))
    if not x.flags.c_contiguous:
        raise BufferError("TensorFlow takes arrays in C order without gaps: give it x.copy()")
    refuse_unaligned(x, "TensorFlow")  # whose operations would end the process
    return tensorflow.experimental.dlpack.from_dlpack(x.__dlpack__())
