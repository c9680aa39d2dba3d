"""NumPy: 1.26 asks for the old capsule, and takes everything to read; 2.5 learns of ml_dtypes."""

import importlib.util

import numpy as np

from adapters import framework

NEW = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
LEARNS = hasattr(np, "dtypes") and hasattr(np.dtypes, "register_dlpack_dtype")


class Framework(framework.Framework):
    name = "numpy"
    refusal = (BufferError, RuntimeError)  # for unknown dtypes, before 2.5
    layouts = ("fortran", "gaps", "reversed") if NEW else ("fortran", "gaps")
    readonly = "kept" if NEW else "refused"
    writes = NEW

    def take(self, array):
        return np.from_dlpack(array)

    def address(self, there):
        return there.__array_interface__["data"][0]

    def make(self, values):
        return np.array(values)


if LEARNS and importlib.util.find_spec("ml_dtypes"):
    Framework.dtypes = (*framework.Framework.dtypes, *framework.OF_ML_DTYPES)
