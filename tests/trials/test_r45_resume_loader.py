"""R45, resume in mid-epoch: mosaicml/streaming#437.

Also mosaicml/streaming#880, Lightning-AI/litData#316, Lightning-AI/litData#213.
"""

import json

import pytest

PROGRAM = """
import json
import pickle
import sys
import time

import ropeway as rw

WORKERS, TAKEN, STATE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


class Data:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return index


def flat(batches):
    return [n for batch in batches for n in batch.tolist()]


if __name__ == "__main__":
    with rw.Loader(Data(), 4, WORKERS, shuffle=True, seed=7) as loader:
        if STATE:
            loader.load_state_dict(json.loads(STATE))
            print(json.dumps([flat(loader), flat(loader)]))
        elif TAKEN < 0:
            print(json.dumps([flat(loader), flat(loader)]))
        else:
            batches = iter(loader)
            got = flat(next(batches) for _ in range(TAKEN))
            state = loader.state_dict()
            time.sleep(1)
            assert loader.state_dict() == state
            assert len(pickle.dumps(state)) < 64 << 10
            print(json.dumps([got, state]))
"""


@pytest.mark.parametrize(("before", "after"), [(2, 0), (2, 3), (3, 2), (0, 3)])
@pytest.mark.parametrize("taken", [0, 5, 25])
def test_going_on_is_as_if_nothing_had_happened(room, before, after, taken):
    reference = json.loads(room.run(PROGRAM, 2, -1, ""))
    got, state = json.loads(room.run(PROGRAM, before, taken, ""))
    rest, following = json.loads(room.run(PROGRAM, after, 0, json.dumps(state)))
    assert got + rest == reference[0]
    assert len(got) == 4 * taken
    assert following == reference[1]
