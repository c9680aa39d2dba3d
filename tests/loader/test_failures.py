"""Exceptions of the dataset: they arrive, and the loader goes on."""

import os
import threading
import traceback

import pytest
from datasets import Failing, Made, Numbers, TwoArguments, Unreadable

import ropeway as rw
from ropeway.loader import worker


def numbers(batches):
    return [n for batch in batches for n in batch["number"].tolist()]


class Locked(Exception):
    def __init__(self, index):
        super().__init__(f"locked {index}")
        self.index, self.lock = index, threading.Lock()


class Odd(BaseException):
    pass


def unpicklable(index):
    return {"number": index, "thing": Refusing()} if index == 5 else {"number": index, "thing": 7j}


class Refusing:
    def __reduce__(self):
        raise OSError("not to be pickled")


def local(index):
    class Local(Exception):
        pass

    if index == 5:
        raise Local("of a function")
    return {"number": index}


def stopped(index):
    if index == 5:
        raise StopIteration("early")
    return {"number": index}


def two(index):
    if index == 5:
        raise TwoArguments(1, 2)
    return {"number": index}


def shape_too_large(index):
    if index == 5:
        raise MemoryError("for this sample alone")
    return {"number": index}


CASES = [
    (Failing(8, ValueError("bad\nvalue")), ValueError, "bad\nvalue"),
    (Failing(8, KeyError("one\ntwo\nthree")), KeyError, "one\ntwo\nthree"),
    (Made(8, two), TwoArguments, "1 and 2"),
    (Failing(8, SystemExit(3)), rw.WorkerError, "SystemExit"),
    (Failing(8, Odd("odd")), rw.WorkerError, "Odd"),
    (Failing(8, KeyboardInterrupt()), rw.WorkerError, "KeyboardInterrupt"),
    (Made(8, local), rw.WorkerError, "of a function"),
    (Made(8, shape_too_large), MemoryError, "for this sample alone"),
    (Made(8, unpicklable), (OSError, rw.RopewayError), ""),
    (Made(8, stopped), RuntimeError, "early"),
]


@pytest.mark.parametrize(("data", "kind", "text"), CASES, ids=range(len(CASES)))
def test_an_exception_arrives_with_its_story_and_the_loader_goes_on(loader, data, kind, text):
    batches = loader(data, batch_size=1, workers=1)
    iterator = iter(batches)
    assert numbers(next(iterator) for _ in range(5)) == list(range(5))
    with pytest.raises(kind) as caught:
        next(iterator)
    story = "".join(traceback.format_exception(caught.value))
    for part in (text, "worker 0", "sample 5", "Traceback", "process"):
        assert part in story
    assert type(caught.value) is not rw.OutOfMemory
    assert numbers(iterator) == [6, 7]
    del caught


def test_an_exception_keeps_its_type_and_what_can_travel_of_it(loader, method):
    batches = loader(Made(8, locked), batch_size=1, workers=1, start_method=method)
    iterator = iter(batches)
    assert numbers(next(iterator) for _ in range(5)) == list(range(5))
    with pytest.raises(Locked, match="locked 5") as caught:
        next(iterator)
    assert caught.value.index == 5
    assert caught.value.__notes__ == ["a note"]
    assert not hasattr(caught.value, "lock")
    assert "sample 5" in str(caught.value.__cause__)


def locked(index):
    if index == 5:
        error = Locked(5)
        error.add_note("a note")
        raise error
    return {"number": index}


def test_an_exception_that_would_say_something_else_is_told(loader):
    batches = loader(Failing(8, None), batch_size=1, workers=1, start_method="fork")
    batches.dataset.error = Speaking()
    with pytest.raises(rw.WorkerError, match=r"Speaking for sample 5: held by"):
        list(batches)


class Speaking(Exception):
    def __init__(self):
        self.lock = threading.Lock()

    def __str__(self):
        return f"held by {self.lock}"


class AllAtOnce(Numbers):
    def __getitems__(self, keys):
        if 5 in keys:
            raise ValueError("of all of them")
        return [self[key] for key in keys]


def refusing_collate(samples):
    if samples[0]["number"] == 4:
        raise ValueError("of all of them")
    return samples


@pytest.mark.parametrize(
    ("data", "collate", "named"),
    [
        (Numbers(12), refusing_collate, "samples 4, 5, 6, 7"),
        (AllAtOnce(12), None, "samples 4, 5, 6, 7"),
        (Made(12, unpicklable), None, "sample 5"),
        (Made(12, unpicklable), list, "samples 4, 5, 6, 7"),
    ],
)
def test_no_sample_is_named_for_what_others_did(loader, data, collate, named):
    batches = loader(data, batch_size=4, workers=1, collate=collate)
    with pytest.raises((ValueError, OSError)) as caught:
        list(batches)
    assert f" for {named}: " in str(caught.value.__cause__)


def test_a_dataset_that_raises_stopiteration_loses_nothing(loader):
    """An error of a sample never looks like the end of the epoch."""

    class Stopping(Numbers):
        def __getitems__(self, keys):
            if 5 in keys:
                raise StopIteration("too early")
            return [self[key] for key in keys]

    for workers in 0, 1:
        iterator = iter(loader(Stopping(12), 4, workers, start_method="fork"))
        assert numbers([next(iterator)]) == [0, 1, 2, 3]
        with pytest.raises((RuntimeError, rw.WorkerError), match="too early"):
            next(iterator)
        assert numbers(iterator) == [8, 9, 10, 11]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_without_keys_is_an_error_that_says_so(loader, workers):
    iterator = iter(loader(Numbers(8), workers=workers, batch_sampler=[[0], [], [1]]))
    assert numbers([next(iterator)]) == [0]
    with pytest.raises(ValueError, match="batch_sampler gave a batch without keys"):
        next(iterator)
    assert numbers(iterator) == [1]


def test_what_a_worker_cannot_tell_counts_as_its_death(loader, monkeypatch):
    """Whatever goes wrong in a worker's own code, it isn't begun again and again."""

    def broken(*_):
        os.close(2)
        raise RuntimeError("nobody has foreseen this")

    monkeypatch.setattr(worker, "failure", broken)
    batches = loader(Failing(8, ValueError()), 1, 1, start_method="fork", retries=1, timeout=30)
    iterator = iter(batches)
    assert numbers(next(iterator) for _ in range(5)) == list(range(5))
    with pytest.raises(rw.WorkerError, match=r"sample 5 has ended 2 workers.*exit status 1"):
        next(iterator)
    assert numbers(iterator) == [6, 7]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_batch_that_can_t_be_read_is_an_error_and_the_rest_comes(loader, ordered):
    batches = loader(Numbers(16), 4, 2, collate=unreadable, ordered=ordered, timeout=10)
    iterator, got = iter(batches), []
    with pytest.raises(ValueError, match="can't be read"):
        got.extend(batch[0] for batch in iterator)
    got += [batch[0] for batch in iterator]
    assert sorted(got) == [0, 4, 12]


def unreadable(samples):
    first = samples[0]["number"]
    return first, Unreadable(first if first == 8 else None)


def test_every_batch_may_fail(loader):
    batches = loader(Failing(20, ValueError("no"), bad=range(20)), batch_size=2, workers=2)
    iterator, failures = iter(batches), 0
    while True:
        try:
            next(iterator)
        except ValueError:
            failures += 1
        except StopIteration:
            break
    assert failures == 10


class Unloadable(Numbers):
    def __setstate__(self, state):
        raise RuntimeError("can't be loaded here")


@pytest.mark.parametrize("method", [None, "spawn"])
def test_a_dataset_that_cannot_be_loaded_is_an_error(loader, method):
    batches = loader(Unloadable(20), batch_size=2, workers=2, start_method=method)
    with pytest.raises(RuntimeError, match="can't be loaded here") as caught:
        next(iter(batches))
    assert "for the dataset itself" in str(caught.value.__cause__)


def test_a_dataset_that_cannot_be_pickled_is_an_error(loader):
    batches = loader(Failing(8, threading.Lock()), workers=1)
    with pytest.raises(TypeError, match=r"Failing.*start_method"):
        iter(batches)


def test_without_workers_exceptions_are_as_they_are(loader):
    error = ValueError("as it is")
    iterator = iter(loader(Failing(8, error), batch_size=1, workers=0))
    assert numbers(next(iterator) for _ in range(5)) == list(range(5))
    with pytest.raises(ValueError, match="as it is") as caught:
        next(iterator)
    assert caught.value is error
    assert numbers(iterator) == [6, 7]
