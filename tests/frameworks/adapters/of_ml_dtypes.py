"""ml_dtypes: dtypes that NumPy doesn't have, in NumPy's arrays."""

import ml_dtypes
import numpy as np

from adapters import of_numpy


class Framework(of_numpy.Framework):
    name = "ml_dtypes"

    def make(self, values):
        return np.array(values, ml_dtypes.bfloat16)
