"""R18, big-endian, with the loader: cupy/cupy#3652; also dmlc/dlpack#97, cositools/cosipy#636."""

PROGRAM = """
import numpy as np

import ropeway as rw

FLOATS, INTS = (np.arange(1000) / 8).astype(">f4"), np.arange(1000).astype(">i2")
RECORDS = np.zeros(1000, [("x", ">f4"), ("n", "i8")])
RECORDS["x"] = FLOATS


class Data:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return FLOATS, INTS, RECORDS, FLOATS[index]


if __name__ == "__main__":
    for workers in (0, 2):
        with rw.Loader(Data(), 2, workers) as loader:
            for number, (floats, ints, records, scalar) in enumerate(loader):
                assert floats.dtype == ">f4" and ints.dtype == ">i2"
                assert records.dtype == RECORDS.dtype
                assert floats.astype("f8").sum() == 2 * 62437.5
                assert ints.sum(dtype=int) == 2 * 499500
                assert records["x"].astype("f8").sum() == 2 * 62437.5
                assert scalar.tolist() == [number / 4, number / 4 + 0.125]
"""


def test_values_and_byte_order_are_kept(room):
    room.run(PROGRAM)
