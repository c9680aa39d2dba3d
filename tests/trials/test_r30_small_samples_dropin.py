"""R30, very small samples, with the drop-in: google/grain#851."""

import pytest

from dropin import HEAD

PROGRAM = (
    HEAD
    + """
class Data(Dataset):
    def __len__(self):
        return 2100

    def __getitem__(self, index):
        return {str(n): torch.full((512,), float(index)) for n in range(30)}


def objects():
    maps = Path("/proc/self/maps").read_text().count("memfd")
    return len(os.listdir("/proc/self/fd")), maps, len(os.listdir("/proc/self/task"))


if __name__ == "__main__":
    loader = DataLoader(Data(), None, num_workers=1, multiprocessing_context=METHOD)
    seen = []
    for number, batch in enumerate(loader):
        assert len(batch) == 30 and all(float(t[-1]) == number for t in batch.values())
        if number >= 100:
            seen.append(objects())
    assert len(set(seen)) == 1, set(seen)
"""
)


@pytest.mark.parametrize("method", ["fork"])
def test_batches_make_no_system_objects(room, method):
    room.run(PROGRAM, method, seconds=100)
