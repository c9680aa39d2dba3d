"""ml_dtypes with NumPy: dtypes that NumPy doesn't have."""

import ml_dtypes
import numpy as np

from adapters import framework, of_numpy


class Framework(of_numpy.Framework):
    name = "ml_dtypes"

    def make(self, values):
        return np.array(values, ml_dtypes.bfloat16)


if hasattr(np.dtypes, "register_dlpack_dtype"):
    Framework.dtypes = (*framework.Framework.dtypes, *framework.OF_ML_DTYPES)
