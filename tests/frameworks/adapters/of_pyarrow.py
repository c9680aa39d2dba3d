"""PyArrow: arrays of numbers, and of a fixed-shape tensor for each row."""

import numpy as np
import pyarrow

from adapters import framework


class Framework(framework.Framework):
    name = "pyarrow"
    dtypes = (*framework.INTEGERS, *framework.FLOATS)
    layouts = ()
    odd_shapes = ((),)
    readonly = "constant"
    writes = False

    def address(self, there):
        return there.buffers()[-1].address

    def values(self, there):
        if isinstance(there, pyarrow.FixedShapeTensorArray):
            return np.array(there.to_numpy_ndarray())
        return np.array(there.to_numpy())

    def make(self, values):
        return pyarrow.array(values)
