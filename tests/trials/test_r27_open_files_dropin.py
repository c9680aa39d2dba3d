"""R27, too many open files, with the drop-in: pytorch/pytorch#11201."""

import pytest

from dropin import HEAD

PROGRAM = (
    HEAD
    + """
import resource

resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


class Data(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"index": index, "array": torch.full((1000,), float(index))}


def descriptors():
    return len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    loader = DataLoader(Data(2000), None, num_workers=2, multiprocessing_context=METHOD)
    next(iter(loader))
    start, most, kept = descriptors(), 0, []
    for sample in loader:
        kept.append(sample)
        most = max(most, descriptors())
    assert most <= start + 40, (start, most)
    assert len(kept) == 2000
    assert all(s["index"] == k and (s["array"] == k).all() for k, s in enumerate(kept))
    del kept, sample, loader
    gc.collect()
    counts = []
    for _ in range(4 if METHOD == "fork" else 1):
        loader = DataLoader(Data(80), 4, num_workers=2, multiprocessing_context=METHOD)
        assert sum(len(batch["index"]) for batch in loader) == 80
        gc.collect()
        counts.append(descriptors())
    assert counts == counts[:1] * len(counts), counts
"""
)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_samples_are_kept_with_256_descriptors(room, method):
    room.run(PROGRAM, method, seconds=100)
