"""R33, a worker killed inside a critical section, with the drop-in: birdnet-team/birdnet#73."""

import pytest

from dropin import HEAD

PROGRAM = (
    HEAD
    + """
ROUNDS = int(sys.argv[2])


class Data(Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        return index, torch.full((8, 1024), float(index))


def check(batch, number):
    indices, arrays = batch
    assert indices.tolist() == list(range(8 * number, 8 * number + 8)), (number, indices)
    assert (arrays == indices.view(-1, 1, 1)).all()


if __name__ == "__main__":
    chance = random.Random(1)
    workers = 4 if METHOD == "fork" else 2
    loader = DataLoader(
        Data(), 8, num_workers=workers, multiprocessing_context=METHOD, retries=6
    )
    iterator = iter(loader)
    number = 0
    for _ in range(ROUNDS):
        end = time.monotonic() + 0.02 + 0.03 * chance.random()
        while time.monotonic() < end:
            check(next(iterator), number)
            number += 1
        pid = chance.choice(iterator._workers).pid
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.005)
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        for _ in range(10):
            check(next(iterator), number)
            number += 1
    del iterator
    again = iter(loader)
    for number in range(10):
        check(next(again), number)
    again._shutdown_workers()
"""
)


@pytest.mark.parametrize(("method", "rounds"), [("fork", 50), ("spawn", 1)])
def test_the_stream_goes_on_whoever_is_killed(room, method, rounds):
    room.run(PROGRAM, method, rounds, seconds=110)
