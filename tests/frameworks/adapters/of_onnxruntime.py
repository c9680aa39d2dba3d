"""ONNX Runtime: values that sessions read or write."""

import numpy as np
import onnx
import onnxruntime

import ropeway as rw
from adapters import framework

# NumPy has none of these, and `OrtValue.numpy` fails or gives their bytes.
OTHERS = {onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.FLOAT8E5M2}


class Framework(framework.Framework):
    name = "onnxruntime"
    dtypes = ("bool", *framework.INTEGERS, *framework.FLOATS, *framework.OF_ML_DTYPES)
    layouts = ()
    readonly = "constant"
    writes = False

    def address(self, there):
        return there.data_ptr()

    def values(self, there):
        if there.element_type() in OTHERS:
            return np.array(rw.share(there))
        return there.numpy().copy()

    def part(self, there):
        return there

    def last(self, there):
        return None

    def make(self, values):
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.array(values))
