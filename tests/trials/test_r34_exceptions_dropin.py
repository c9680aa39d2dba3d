"""R34, worker exceptions that don't pickle, with the drop-in: pytorch/pytorch#44631.

Also pytorch/pytorch#142884, pytorch/pytorch#16647, safetensors/safetensors#492.
"""

import pytest

from dropin import HEAD

PROGRAM = (
    HEAD
    + """
import threading


class Two(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Locked(Exception):
    def __init__(self):
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Base(BaseException):
    pass


class Refusing:
    def __reduce__(self):
        raise OSError("refuses to be pickled")


class Data(Dataset):
    def __init__(self, case):
        self.case = case

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return getattr(self, self.case)() if index == 5 else index

    def a(self):
        raise Two(1, 2)

    def b(self):
        raise Locked

    def c(self):
        class Local(Exception):
            pass

        raise Local("of a method")

    def d(self):
        return Refusing()

    def e(self):
        raise KeyError("first line\\nsecond line\\nthird line")

    def f(self):
        sys.exit(3)

    def g(self):
        raise Base("below everything")


EXPECTED = {
    "a": ("Two", "1 and 2"),
    "b": ("Locked", "holds a lock"),
    "c": ("Local", "of a method"),
    "d": ("OSError", "refuses to be pickled"),
    "e": ("KeyError", "third line"),
    "f": ("SystemExit", "3"),
    "g": ("Base", "below everything"),
}

if __name__ == "__main__":
    for case, (kind, message) in EXPECTED.items():
        loader = DataLoader(
            Data(case), 1, num_workers=1, collate_fn=list, multiprocessing_context=METHOD
        )
        batches = iter(loader)
        assert [next(batches) for _ in range(5)] == [[k] for k in range(5)]
        try:
            next(batches)
        except Exception as error:
            story = str(error)
        else:
            raise AssertionError(f"{case}: no exception")
        for part in (kind, message, "worker process 0", "Traceback", "sample 5"):
            assert part in story, (case, part, story)
        assert list(batches) == [[6], [7]]
    healthy = DataLoader(list(range(8)), 1, num_workers=1, multiprocessing_context=METHOD)
    assert [int(batch) for batch in healthy] == list(range(8))
"""
)


@pytest.mark.parametrize("method", ["fork"])
def test_every_exception_arrives_with_its_story(room, method):
    room.run(PROGRAM, method, seconds=100)
