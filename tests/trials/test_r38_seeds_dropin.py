"""R38, seeds, with the drop-in: facebookresearch/fairseq#1383.

Also pytorch/pytorch#5059, pytorch/pytorch#41329.
"""

import pytest

from dropin import HEAD

PROGRAM = (
    HEAD
    + """
class Data(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return (
            np.random.randint(0, 1 << 31),
            random.randrange(1 << 31),
            int(torch.randint(0, 1 << 31, ())),
            np.random.randint(0, 1 << 31),
        )


if __name__ == "__main__":
    torch.manual_seed(int(sys.argv[2]))
    loader = DataLoader(
        Data(), 4, num_workers=4, persistent_workers=sys.argv[3] == "1",
        multiprocessing_context=METHOD,
    )
    for _ in range(2):
        print([row for batch in loader for row in zip(*(t.tolist() for t in batch))])
"""
)


@pytest.mark.parametrize("persistent", [0, 1])
def test_draws_differ_by_worker_and_epoch_and_follow_the_seed(room, persistent):
    runs = [room.run(PROGRAM, "fork", seed, persistent, seconds=60) for seed in (1234, 1234, 1235)]
    assert runs[0] == runs[1]
    epochs = [eval(line) for line in (runs[0] + runs[2]).splitlines()]
    assert len({row for epoch in epochs for row in epoch}) == 4 * 64
