"""PyTorch: tensors that may always be written, so read-only arrays are refused."""

import warnings

from adapters import framework

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch

NEW = int(torch.__version__.partition(".")[0]) >= 2


OLD_DTYPES = ("int8", "int16", "int32", "int64", "uint8", "bfloat16")


class Framework(framework.Framework):
    name = "torch"
    if NEW:
        dtypes = (*framework.Framework.dtypes, *framework.OF_ML_DTYPES)
    else:
        dtypes = (*OLD_DTYPES, *framework.FLOATS, *framework.COMPLEX)

    def address(self, there):
        return there.data_ptr()

    def values(self, there):
        if there.dtype.is_floating_point and there.dtype not in (torch.float32, torch.float64):
            there = there.to(torch.float32)
        return there.numpy().copy()

    def make(self, values):
        return torch.tensor(values)
