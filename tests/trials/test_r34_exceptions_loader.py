"""R34, worker exceptions that don't pickle, with the loader: pytorch/pytorch#44631.

Also pytorch/pytorch#142884, pytorch/pytorch#16647, safetensors/safetensors#492.
"""

PROGRAM = """
import sys
import threading
import time
import traceback

import ropeway as rw

METHOD = None if sys.argv[1] == "default" else sys.argv[1]


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


class Data:
    def __init__(self, case):
        self.case = case

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            return getattr(self, self.case)()
        return index

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
    "e": ("KeyError", "first line\\nsecond line\\nthird line"),
    "f": ("SystemExit", "3"),
    "g": ("Base", "below everything"),
}

if __name__ == "__main__":
    for case, (kind, message) in EXPECTED.items():
        collate = None if case != "d" else lambda_free
        with rw.Loader(Data(case), 1, 1, start_method=METHOD, collate=collate) as loader:
            batches = iter(loader)
            assert [int(next(batches)[0]) for _ in range(5)] == [0, 1, 2, 3, 4]
            begin = time.monotonic()
            try:
                next(batches)
            except Exception as error:
                story = "".join(traceback.format_exception(error))
            else:
                raise AssertionError(f"{case}: no exception")
            assert time.monotonic() - begin < 5
            for part in (kind, message, "worker 0", "sample 5", "Traceback", "__getitem__"):
                assert part in story or (case, part) == ("d", "__getitem__"), (case, part, story)
            assert [int(batch[0]) for batch in batches] == [6, 7]
    with rw.Loader(range(8), 1, 1, start_method=METHOD) as loader:
        assert [int(batch[0]) for batch in loader] == list(range(8))
""".replace(
    "if __name__",
    """
def lambda_free(samples):
    return samples


if __name__""",
    1,
)


def test_every_exception_arrives_with_its_story(room, loader_method):
    room.run(PROGRAM, loader_method, seconds=60)


MIXED = (
    PROGRAM.split("EXPECTED = {")[0]
    + """
if __name__ == "__main__":
    with rw.Loader(Data("d"), 1, 1, start_method=METHOD) as loader:
        batches = iter(loader)
        assert [int(next(batches)[0]) for _ in range(5)] == [0, 1, 2, 3, 4]
        try:
            next(batches)
        except OSError as error:
            assert "refuses" in str(error) and "sample 5" in str(error.__cause__)
        assert [int(batch[0]) for batch in batches] == [6, 7]
"""
)


def test_an_object_that_cannot_be_pickled_is_named(room, loader_method):
    """A sibling: the object is a sample, not what a collate function made of it."""
    room.run(MIXED, loader_method)
