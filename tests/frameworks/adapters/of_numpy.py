"""NumPy: 1.26 asks for the old capsule, and takes everything to read."""

import numpy as np

from adapters import framework

NEW = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


class Framework(framework.Framework):
    name = "numpy"
    layouts = ("fortran", "gaps", "reversed") if NEW else ("fortran", "gaps")
    readonly = "kept" if NEW else "refused"
    writes = NEW

    def take(self, array):
        return np.from_dlpack(array)

    def address(self, there):
        return there.__array_interface__["data"][0]

    def make(self, values):
        return np.array(values)
