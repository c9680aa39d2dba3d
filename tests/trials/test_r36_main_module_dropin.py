"""R36, notebook, `__main__`, spawn and forkserver, with the drop-in.

computational-cell-analytics/dl-for-micro#20, open-mmlab/mmdetection#410.
"""

import subprocess
import sys

import pytest

from dropin import HEAD

PROGRAM = (
    HEAD
    + """
class Data(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index


def doubled(samples):
    return [2 * sample for sample in samples]


if __name__ == "__main__":
    loader = DataLoader(
        Data(), 5, num_workers=2, collate_fn=doubled, multiprocessing_context=METHOD
    )
    try:
        print(list(loader))
    except Exception as error:
        print(type(error).__name__, error)
"""
)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_main_module_with_a_file(room, method):
    assert room.run(PROGRAM, method, seconds=60) == "[[0, 2, 4, 6, 8], [10, 12, 14, 16, 18]]\n"


@pytest.mark.parametrize(("method", "wanted"), [("fork", "[[0, 2"), ("spawn", "WorkerDied")])
def test_a_main_module_without_a_file_works_or_is_an_error(method, wanted):
    """What new processes can't import, they say on standard error."""
    command = [sys.executable, "-", method]
    done = subprocess.run(
        command, input=PROGRAM, capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.startswith(wanted), done.stdout
