"""PyArrow: arrays over our memory, by the Arrow C data interface."""

from typing import Any

from ropeway._views import AnyArray


def asarray(x: AnyArray) -> Any:
    """An array of numbers, or of a fixed-shape tensor for each row, that aliases the array."""
    import pyarrow

    return pyarrow.array(x)
