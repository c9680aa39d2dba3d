"""R14, datetime64 and timedelta64, through the loader: dask/distributed#635."""

import pytest

PROGRAM = """
import sys

import numpy as np

import ropeway as rw

DATES = np.array(["2010-01-01", "2010-01-02", "2010-01-03", "NaT"], "M8[ns]")
SPANS = np.array([0, 86400, -1], "m8[s]")
METHOD = None if sys.argv[1] == "default" else sys.argv[1]


class Data:
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return {"dates": DATES, "spans": SPANS, "none": DATES[:0].astype("M8[D]"), "one": DATES[1]}


if __name__ == "__main__":
    with rw.Loader(Data(), 3, int(sys.argv[2]), start_method=METHOD) as loader:
        batches = list(loader)
    assert len(batches) == 2
    for batch in batches:
        assert batch["dates"].dtype == "M8[ns]" and batch["spans"].dtype == "m8[s]"
        assert batch["none"].dtype == "M8[D]" and batch["none"].shape == (3, 0)
        assert batch["one"].dtype == "M8[ns]" and batch["one"].shape == (3,)
        for row in batch["dates"].view("i8"):
            assert row.tolist() == [
                1262304000000000000, 1262390400000000000, 1262476800000000000,
                -9223372036854775808,
            ]
        assert (batch["spans"] == SPANS).all()
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_dates_keep_their_units(room, loader_method, workers):
    room.run(PROGRAM, loader_method, workers)
