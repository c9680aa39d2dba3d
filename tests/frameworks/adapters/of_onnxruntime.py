"""ONNX Runtime: values that sessions read or write."""

import onnxruntime

from adapters import framework


class Framework(framework.Framework):
    name = "onnxruntime"
    dtypes = ("bool", *framework.INTEGERS, *framework.FLOATS, *framework.OF_ML_DTYPES)
    layouts = ()
    readonly = "constant"
    writes = False

    def address(self, there):
        return there.data_ptr()

    def values(self, there):
        return there.numpy().copy()

    def part(self, there):
        return there

    def make(self, values):
        import numpy as np

        return onnxruntime.OrtValue.ortvalue_from_numpy(np.array(values))
