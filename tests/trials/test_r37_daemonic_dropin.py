"""R37, nested pools and daemonic processes, with the drop-in: pytorch/pytorch#15950."""

import pytest

from dropin import HEAD

PROGRAM = (
    HEAD
    + """
import multiprocessing as mp


def total(workers):
    try:
        loader = DataLoader(list(range(100)), 4, num_workers=workers)
        return sum(int(batch.sum()) for batch in loader)
    except AssertionError as error:
        assert "daemonic" in str(error) and "num_workers=0" in str(error), error
        return "refused"


if __name__ == "__main__":
    with mp.get_context(METHOD).Pool(2) as pool:
        assert pool.map(total, [0, 0]) == [4950, 4950]
        assert pool.map(total, [2, 2]) == ["refused"] * 2
        assert pool.map(abs, [-1, 2]) == [1, 2]
        pool.close()
        pool.join()
    assert total(2) == 4950
"""
)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_loader_in_a_daemonic_process_is_refused_as_torchs_is(room, method):
    room.run(PROGRAM, method, seconds=100)
